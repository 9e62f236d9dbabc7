"""What is said in words: a verdict as a sentence, and the headline of a group. No layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from detente.judge.headline import LEAST_RATIO, at_least, hindrance, may_lead
from detente.records.result import CellResult, SessionHead
from detente.records.verdict import LEAST_BLOCKS, Verdict
from detente.report.break_even import break_even
from detente.report.numbers import count, margin, plain_span, seconds, significant
from detente.report.page import Statement, Tone, Words, strong, words
from detente.report.text import capital

_OPPOSITE = {"FASTER": "SLOWER", "SLOWER": "FASTER"}
TONES: dict[str, Tone] = {
    "FASTER": "good",
    "SLOWER": "bad",
    "SAME": "plain",
    "LEANS": "warn",
    "UNDECIDED": "warn",
    "VOID": "bad",
}

# Words that say something of a pair. VOID says why nothing can be said.
SETTLED = frozenset({"FASTER", "SLOWER", "SAME"})

STATES = {"oom": "ran out of memory", "void": "is void", "failed": "failed", "skipped": "is skipped"}


def flipped(verdict: Verdict) -> Verdict:
    """The same verdict told from the other side: ``b`` against ``a``."""

    def inverse(x: float | None) -> float | None:
        return None if not x else 1 / x

    return replace(
        verdict,
        a=verdict.b,
        b=verdict.a,
        word=_OPPOSITE.get(verdict.word, verdict.word),
        ratio=inverse(verdict.ratio),
        low=inverse(verdict.high),
        high=inverse(verdict.low),
    )


def times(verdict: Verdict, careful: bool = False) -> str:
    """How many times: ``1.42x faster``, ``1.42x slower``; for LEANS the difference in per cent. Empty for a
    word that carries no ratio, so that none can be printed by accident. ``careful``: the nearer end of the interval
    instead, ``at least 1.31x faster``, where the machine was not quiet."""
    least = at_least(verdict) if careful else None
    if least is not None:
        return f"at least {significant(least)}x {verdict.word.lower()}"
    if verdict.ratio is None or verdict.word not in ("FASTER", "SLOWER", "LEANS"):
        return ""
    faster = verdict.ratio < 1
    if verdict.word == "LEANS":
        return f"{margin(abs(1 - verdict.ratio))} {'faster' if faster else 'slower'}"
    low, high = verdict.low or verdict.ratio, verdict.high or verdict.ratio
    told = (1 / verdict.ratio, 1 / high, 1 / low) if faster else (verdict.ratio, low, high)
    return f"{_within(*told)}x {'faster' if faster else 'slower'}"


def _within(value: float, low: float, high: float) -> str:
    """Three digits, and more where rounding would put the figure outside of the interval that stands beside it:
    ``1.12`` of 1.116 to 1.119."""
    found = (significant(value, digits) for digits in (3, 4, 5))
    return next((text for text in found if low <= float(text) <= high), significant(value))


def interval(verdict: Verdict) -> str:
    """The interval on the scale of ``times``: ``1.38 to 1.46``; empty for VOID, or where there is none."""
    if verdict.word == "VOID" or verdict.low is None or verdict.high is None or verdict.ratio is None:
        return ""
    if verdict.word == "FASTER":
        return plain_span(1 / verdict.high, 1 / verdict.low)
    return plain_span(verdict.low, verdict.high)


def undecided(verdict: Verdict) -> str:
    """What is missing: ``5 processes each, about 12 needed to see 2 %``; under five blocks ``1 process each, a verdict
    needs 5``. Never "no difference": an open pair that reads like an equal one has misled people."""
    have = f"{count(verdict.blocks, 'process', 'processes')} each"
    if verdict.too_noisy:
        return f"{have}; {verdict.reason}"
    if verdict.needed is not None and verdict.blocks < LEAST_BLOCKS:
        return f"{have}, a verdict needs {verdict.needed}"
    if verdict.needed is None:
        return f"{have}, more would probably not decide about {margin(verdict.margin)}"
    return f"{have}, about {verdict.needed} needed to see {margin(verdict.margin)}"


def pair_sentence(
    verdict: Verdict, medians: Mapping[str, float] | None = None, careful: bool = False
) -> Words:
    """One pair in one sentence, without a full stop. ``medians``, seconds per step by row, stand beside the names of an
    undecided pair: 0.80 s beside 1.22 s must not be read as the same, nor as a difference that was proved. ``careful``
    as in ``times``."""
    a, b = strong(verdict.a), strong(verdict.b)
    if verdict.word in ("FASTER", "SLOWER"):
        return words(a, " is ", strong(times(verdict, careful)), " than ", b)
    if verdict.word == "SAME":
        return words(a, " and ", b, " are the same within ", margin(verdict.margin))
    if verdict.word == "LEANS":
        return words(
            a,
            " leans ",
            times(verdict),
            " than ",
            b,
            f", not decided: the difference may be within the margin of {margin(verdict.margin)}",
        )
    if verdict.word == "UNDECIDED":
        known = medians or {}
        pair = words(a, _step(known.get(verdict.a)), " and ", b, _step(known.get(verdict.b)))
        return words("not decided: ", pair, " per step; " if known else "; ", undecided(verdict))
    return words("no ratio between ", a, " and ", b, f": {verdict.reason}" if verdict.reason else "")


@dataclass(frozen=True)
class Comparison:
    """Rows that may be compared, and the verdicts about them."""

    name: str
    cells: tuple[CellResult, ...]
    verdicts: tuple[Verdict, ...]
    margin: float
    aa: Verdict | None
    twin: str | None

    def own(self) -> tuple[CellResult, ...]:
        """The rows that were asked for: without the second name of the A/A pair."""
        return tuple(c for c in self.cells if c.label != self.twin)

    def twice(self) -> str:
        """The row that the A/A pair repeats; empty without one."""
        return "" if self.aa is None else self.aa.a if self.aa.b == self.twin else self.aa.b


def headline(session: SessionHead, group: Comparison) -> tuple[Statement, ...]:
    """The verdict first, in one to three sentences. The first one leads the page."""
    if session.state == "drifting":
        return _drifting(group)
    fine = [c for c in group.own() if c.status == "ok"]
    if not fine:
        states = ", ".join(sorted({c.status for c in group.own()})) or "nothing was planned"
        return (Statement(words("No row of this comparison has a result: ", states, "."), "bad", leads=True),)
    if len(fine) == 1 or not group.verdicts:
        return (_alone(session, fine, group),)
    fine.sort(key=lambda c: c.steady_s.median if c.steady_s else float("inf"))
    first = fine[0].label
    held = tuple(v for v in group.verdicts if v.word in SETTLED and not may_lead(v, session))
    pairs = [v for v in group.verdicts if v not in held]
    views = [v for v in (_seen_from(first, c.label, pairs) for c in fine[1:]) if v is not None]
    others = [v for v in pairs if first not in (v.a, v.b)]
    hindered = hindrance(session, group.name)
    said = _ranking(views, others, group, fine, careful=bool(hindered)) if pairs or not held else ()
    return (*said, *_held_back(hindered, held, said))


def _drifting(group: Comparison) -> tuple[Statement, ...]:
    lead = Statement(
        words(strong("No ratio is printed: the machine drifted during this session.")), "warn", leads=True
    )
    if group.aa is None or group.aa.low is None or group.aa.high is None:
        return (lead,)
    said = words(
        f"{group.twice()} was run twice, under two names, and the two runs differ by more than 2 % "
        f"(time ratio {plain_span(group.aa.low, group.aa.high)}), so no difference between stacks can be trusted. "
        "Close what else runs on this machine, and run it again."
    )
    return lead, Statement(said, "warn")


def _alone(session: SessionHead, fine: Sequence[CellResult], group: Comparison) -> Statement:
    if len(fine) > 1:
        state = "not judged" if session.state == "unjudged" else "without a verdict"
        text = words(f"{len(fine)} rows were measured; this session is {state}.")
        return Statement(text, "warn", leads=True)
    others = [c for c in group.own() if c.status != "ok"]
    said: list[str | Words] = ["Only ", words(strong(fine[0].label)), " has a result"]
    if others:
        named = [words(strong(c.label), f" {STATES.get(c.status, c.status)}") for c in others[:3]]
        if len(others) > 3:
            named.append(words(f"{count(len(others) - 3, 'other row')} as little"))
        said.extend(["; ", _listed(named)])
    return Statement(words(*said, ", so nothing is compared."), "warn", leads=True)


def _seen_from(a: str, b: str, verdicts: Sequence[Verdict]) -> Verdict | None:
    for v in verdicts:
        if (v.a, v.b) == (a, b):
            return v
        if (v.a, v.b) == (b, a):
            return flipped(v)
    return None


def _listed(parts: Sequence[Words]) -> Words:
    found: list[Words] = []
    for i, part in enumerate(parts):
        found.append(part if i == 0 else words(" and " if i == len(parts) - 1 else ", ", part))
    return words(*found)


def _held_back(hindered: str, held: Sequence[Verdict], said: Sequence[Statement]) -> tuple[Statement, ...]:
    """Of a machine that was not quiet: that it was not, and which decided pairs are left to the table for it."""
    if not hindered:
        return ()
    text = f"The machine was not quiet: {hindered}, so figures here are the nearer ends of intervals"
    if not any(s.tone == "good" for s in said):
        text = f"No headline: {hindered}"
    if not held:
        return (Statement(words(text, "."), "warn", leads=not said),)
    pairs = _listed([words(strong(v.a), " against ", strong(v.b)) for v in held])
    left = words(
        "; what was decided under ", f"{LEAST_RATIO:g}x stands in the table of pairs only: ", pairs, "."
    )
    return (Statement(words(text, left), "warn", leads=not said),)


def _ranking(
    views: Sequence[Verdict],
    others: Sequence[Verdict],
    group: Comparison,
    fine: Sequence[CellResult],
    careful: bool,
) -> tuple[Statement, ...]:
    """``views``: the row of the lowest median, the first of ``fine``, against the rest. ``others``: pairs without it.
    What is settled is said before what is open. ``careful`` as in ``times``."""
    first, rows = fine[0].label, len(fine)
    medians = {c.label: c.steady_s.median for c in fine if c.steady_s}
    by = {word: [v for v in views if v.word == word] for word in (*TONES,)}
    beaten, same = by["FASTER"], by["SAME"]
    cells = {c.label: c for c in group.cells}
    medians = {c.label: c.steady_s.median for c in group.cells if c.steady_s is not None}
    said: list[Statement] = []
    if same:
        text = words(_alike(first, same, others), f", within {margin(group.margin)}")
        text = (
            words(text, "; ", strong(first), " is ", _gains(beaten, careful), ".")
            if beaten
            else words(text, ".")
        )
        said.append(Statement(text, "good", leads=True))
    elif beaten:
        # "Fastest of all" is claimed only when it is decided against every other row.
        whole = len(beaten) == rows - 1 and rows > 2
        title = f" is the fastest of {rows}: " if whole else " is "
        said.append(Statement(words(strong(first), title, _gains(beaten, careful), "."), "good", leads=True))
    if not said:  # what is settled leads, though it be of other rows
        said += [replace(s, leads=i == 0) for i, s in enumerate(_elsewhere(others, careful))]
    won = beaten or [
        v for v in (flipped(v) if v.word == "SLOWER" else v for v in others) if v.word == "FASTER"
    ]
    if won:
        # Of the largest decided difference: what a slower start costs, and when it is paid back.
        most = min(won, key=lambda v: v.ratio or 1.0)
        known = most.a in cells and most.b in cells
        # Seconds that a busy machine took are no price of anything.
        paid = break_even(cells[most.a], cells[most.b]) if known and not careful else None
        said += [Statement(paid, "plain")] if paid else []
    open_ = _open(first, by["UNDECIDED"], medians)
    for text in (*(words(pair_sentence(v), ".") for v in by["LEANS"]), *open_):
        said.append(Statement(_capital(text), "warn", leads=not said))
    # The row with the lowest median lost a verdict: possible where blocks and medians disagree. It must be
    # said.
    for v in (*by["SLOWER"], *by["VOID"]):
        said.append(Statement(words(pair_sentence(v, medians, careful), "."), TONES[v.word], leads=not said))
    if not said:
        said.append(Statement(words("No pair of this comparison has a verdict."), "warn", leads=True))
    return tuple(said)


def _alike(first: str, same: Sequence[Verdict], others: Sequence[Verdict]) -> Words:
    """The rows that run at the speed of ``first``; in one breath only where each of them is the same as each other one.
    Two rows within 2 % of a third may lean, or be undecided, against each other."""
    names = [v.b for v in same]
    known = {frozenset((v.a, v.b)) for v in others if v.word == "SAME"}
    named = [words(strong(name)) for name in names]
    if all(frozenset(pair) in known for pair in combinations(names, 2)):
        return words(_listed([words(strong(first)), *named]), " run at the same speed")
    return words(strong(first), " runs at the same speed as each of ", _listed(named))


def _gains(beaten: Sequence[Verdict], careful: bool) -> Words:
    return _listed([words(times(v, careful), " than ", strong(v.b)) for v in beaten])


def _elsewhere(others: Sequence[Verdict], careful: bool) -> list[Statement]:
    """What is settled between rows of which none has the lowest median, a sentence for each winner."""
    wins: dict[str, list[Verdict]] = {}
    for v in (flipped(v) if v.word == "SLOWER" else v for v in others):
        if v.word == "FASTER":
            wins.setdefault(v.a, []).append(v)
    said = [
        Statement(words(strong(a), " is ", _gains(beaten, careful), "."), "good")
        for a, beaten in wins.items()
    ]
    same = [v for v in others if v.word == "SAME"]
    return said + [Statement(words(pair_sentence(v), "."), "good") for v in same]


def _open(first: str, undecided_: Sequence[Verdict], medians: Mapping[str, float]) -> list[Words]:
    """One sentence for all pairs that are undecided after as many blocks; how many each lacks stands in the table."""
    by: dict[int, list[Verdict]] = {}
    for v in undecided_:
        by.setdefault(v.blocks, []).append(v)
    said = []
    for blocks, alike in sorted(by.items(), reverse=True):
        if len(alike) == 1:
            said.append(words(pair_sentence(alike[0], medians), "."))
            continue
        needed = {v.needed for v in alike}
        have = count(blocks, "process", "processes")
        if all(v.too_noisy for v in alike):
            why = f"{have} each; {alike[0].reason}"
        elif blocks < LEAST_BLOCKS:
            why = f"{have} each, a verdict needs {LEAST_BLOCKS}"
        else:
            more = f", about {needed.pop()} needed" if len(needed) == 1 and None not in needed else ""
            why = f"{have} each{more}"
        names = _listed([words(strong(v.b), _step(medians.get(v.b))) for v in alike])
        lead = words("not decided: ", strong(first), _step(medians.get(first)), " against each of ", names)
        said.append(words(lead, f" per step; {why}."))
    return said


def _step(median: float | None) -> str:
    return "" if median is None else f" {seconds(median)}"


def _capital(text: Words) -> Words:
    head = text[0]
    return words(capital(head.text) if head.style == "plain" else head, text[1:])


def void_rows(group: Comparison) -> tuple[Statement, ...]:
    """One sentence for the rows that were not measured to the end for one reason. No row is left out."""
    tones: dict[str, Tone] = {"void": "bad", "failed": "bad", "oom": "warn", "skipped": "quiet"}
    alike: dict[tuple[str, str], list[str]] = {}
    for c in group.cells:
        if c.status != "ok":
            alike.setdefault((c.status, c.reason), []).append(c.label)
    said = []
    for (status, reason), labels in alike.items():
        state = STATES.get(status, status)
        if len(labels) > 1 and state.startswith("is "):
            state = "are " + state.removeprefix("is ")
        why = f": {reason.rstrip('.')}." if reason else "."
        names = _listed([words(strong(x)) for x in labels])
        said.append(Statement(words(names, f" {state}{why}"), tones.get(status, "warn")))
    return tuple(said)
