"""How often the referee is right: thousands of made-up sessions through the judge's real code.

    PYTHONPATH=src python benchmarks/simulated_sessions.py    # writes docs/results/simulated_sessions.md
    PYTHONPATH=src python benchmarks/simulated_sessions.py --sessions 200 --no-write --only "5 % slower"

Each session has three stacks and the A/A twin of the first. The median of a process is log-normal; the spread is that
between the medians of processes, as a report shows it (what a process's samples scatter is in it), correlated from
block to block where the scenario says so. The machine drifts by half a per cent a block. ``judge_pairs`` gives the
words and ``decide`` asks for more blocks, both exactly as ``judge`` and ``more_blocks`` call them; tests/judge compares
the two paths. Nothing of the judge is replaced.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from detente.judge.block_correlation import STORED
from detente.judge.looks import LOOKS, Looks, looks_of
from detente.judge.pairs import Candidates, Pairs, judge_pairs
from detente.judge.statistics import MARGIN
from detente.judge.verdicts import SETTLED, decide
from detente.records.session import Fingerprint, Session
from detente.records.verdict import Verdict

TWIN = "torch-eager#aa"
STACKS = ("torch-eager", "jax", "torch-compile")
LABELS = (*STACKS, TWIN)
DRIFT = 0.005


@dataclass(frozen=True)
class Scenario:
    """``times``: time of ``jax`` over the time of the other two. ``spread``: standard deviation between the medians of
    processes; ``within``: what their samples add to it, where that is drawn apart. ``rho``: correlation of a row's
    level with that of the block before. ``blocks``: a fixed number, or None for the stopping rule. ``ends``: blocks
    behind which budgets end; its user resumes the session as long as a pair is open. ``tails``: degrees of freedom of
    Student's t instead of the normal, same spread of the bulk."""

    times: float
    spread: float
    rho: float = 0.0
    blocks: int | None = None
    tails: int | None = None
    within: float = 0.0
    ends: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        how = f"{100 * self.spread:g} %" + (f", rho {self.rho:.2g}" if self.rho else "")
        how += f", t with {self.tails} degrees of freedom" if self.tails else ""
        how += f", --blocks {self.blocks}" if self.blocks else ""
        how += f", budgets that end at {', '.join(map(str, self.ends))}" if self.ends else ""
        how += f", and {100 * self.within:g} % within processes" if self.within else ""
        return f"{_truth(self.times)}, {how}"


def _truth(times: float) -> str:
    if times == 1:
        return "equal"
    return f"{100 * (times - 1):g} % slower" if times > 1 else f"{100 * (1 - times):g} % faster"


@dataclass(frozen=True)
class Target:
    """``most``: the figure may be at most so much (else at least); ``figure`` names a field of ``Row``."""

    figure: str
    value: float
    most: bool = True

    def met(self, row: Row) -> bool:
        found = getattr(row, self.figure)
        return found <= self.value if self.most else found >= self.value

    def __str__(self) -> str:
        return f"{NAMES[self.figure]} {'at most' if self.most else 'at least'} {100 * self.value:g} %"


@dataclass(frozen=True)
class Part:
    """One table of the page."""

    title: str
    scenarios: tuple[Scenario, ...]
    targets: tuple[Target, ...]
    figures: tuple[str, ...]


SPREADS = (0.01, 0.02, 0.03, 0.05, 0.08)
NAMES = {
    "false": "false FASTER or SLOWER",
    "false_same": "SAME of what differs by 5 %",
    "false_leans": "false LEANS",
    "same": "equal pairs that are SAME",
    "same_whole": "sessions of which all three are",
    "decided": "both pairs with jax decided",
    "right": "both of the right sign, LEANS among them",
    "covered": "printed intervals that hold the truth",
    "noisy": "too noisy",
    "drifting": "drifting",
}
FALSE = Target("false", 0.01)
LEANS = Target("false_leans", 0.05)


def parts(rho: float) -> tuple[Part, ...]:
    """The page's tables; ``rho`` is the stored bound."""
    shown = ("false", "false_leans", "same", "same_whole", "noisy", "drifting")
    return (
        Part(
            "A true difference of 5 % is not SAME",
            tuple(Scenario(t, s) for t in (1.05, 0.95) for s in SPREADS),
            (Target("false_same", 0.01),),
            ("false_same", "decided", "right", "noisy"),
        ),
        Part("Equal programs", (Scenario(1.0, 0.01),), (Target("same", 0.9, most=False), FALSE, LEANS), shown),
        Part(
            "Equal programs, processes further apart",
            tuple(Scenario(1.0, s) for s in SPREADS[1:]),
            (FALSE, LEANS),
            shown,
        ),
        Part(
            "A true difference of 1.9 %, inside the margin",
            tuple(Scenario(t, s) for t in (1.019, 0.981) for s in SPREADS),
            (FALSE,),
            ("false", "same", "noisy"),
        ),
        Part(
            f"Blocks that correlate by the stored bound, {rho:.2g}",
            tuple(Scenario(t, s, rho) for t in (1.0, 1.019) for s in SPREADS),
            (Target("false", 0.02), LEANS),
            ("false", "false_leans", "same", "covered"),
        ),
        Part(
            "Blocks that correlate more than the bound: no target, as it is",
            tuple(Scenario(1.0, s, r) for r in (0.3, 0.5, 0.8) for s in (0.01, 0.03)),
            (),
            ("false", "false_leans", "same", "covered", "drifting"),
        ),
        Part(
            "Heavy tails",
            (Scenario(1.0, 0.01, tails=2), Scenario(1.0, 0.03, tails=2), Scenario(1.05, 0.03, tails=2)),
            (FALSE, LEANS, Target("false_same", 0.01)),
            ("false", "false_leans", "false_same", "same"),
        ),
        Part(
            "A number of blocks fixed beforehand",
            (Scenario(1.0, 0.03, blocks=5), Scenario(1.05, 0.03, blocks=5), Scenario(1.019, 0.01, blocks=10)),
            (FALSE, LEANS, Target("false_same", 0.01)),
            ("false", "false_leans", "false_same", "decided", "same"),
        ),
        Part(
            "A budget that ends, and is given again while a pair is open",
            (*(Scenario(1.0, s, ends=(5, 7, 10, 14)) for s in (0.01, 0.03)), Scenario(1.0, 0.03, ends=(6,)),
             Scenario(1.05, 0.03, ends=(5, 7, 10, 14)), Scenario(1.019, 0.01, ends=(5, 10))),
            (FALSE, LEANS, Target("false_same", 0.01)),
            ("false", "false_leans", "false_same", "decided", "same"),
        ),
        Part(
            "What a session can see: no target",
            (*(Scenario(0.97, s) for s in (0.003, 0.01)), *(Scenario(0.95, s) for s in (0.003, 0.01)),
             *(Scenario(0.7, s) for s in (0.01, 0.03, 0.08)), Scenario(1.0, 0.003),
             Scenario(1.0, 0.01, within=0.004)),
            (),
            ("false", "decided", "right", "same", "noisy"),
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What one session said, and the true log ratio of each verdict."""

    blocks: int
    verdicts: tuple[Verdict, ...]
    truths: tuple[float, ...]
    drifting: bool
    margin: float


def levels(scenario: Scenario, seed: int) -> dict[str, list[float]]:
    """Label -> median seconds of the process of each block, for as many blocks as a session may ask for."""
    rng = np.random.default_rng(seed)
    n = scenario.blocks or LOOKS[-1]
    shape = (n, len(LABELS))
    draws = rng.standard_t(scenario.tails, shape) if scenario.tails else rng.normal(size=shape)
    for i in range(1, n):
        draws[i] = scenario.rho * draws[i - 1] + math.sqrt(1 - scenario.rho**2) * draws[i]
    logs = scenario.spread * draws + rng.normal(0, scenario.within, shape) + DRIFT * np.arange(n)[:, None]
    logs[:, LABELS.index("jax")] += math.log(scenario.times)
    # Whole nanoseconds, as a clock tells them.
    whole = np.rint(0.5e9 * np.exp(logs)) * 1e-9
    return {label: whole[:, i].tolist() for i, label in enumerate(LABELS)}


def simulate(scenario: Scenario, seed: int) -> Outcome:
    """One session from its first block to the judge's last word."""
    times = levels(scenario, seed)
    if scenario.ends:
        for looked, blocks in enumerate(scenario.ends, 1):
            said = words_at(times, blocks, looks_of(_session(None, looked)))
            if all(v.word in SETTLED for v in said.verdicts):
                break
    else:
        looks, blocks = looks_of(_session(scenario.blocks)), 0
        while True:
            blocks += 1
            if blocks in looks.at:
                said = words_at(times, blocks, looks)
            if not decide(blocks, looks, said.verdicts if blocks in looks.at else None):
                break
    gap = {label: math.log(scenario.times) if label == "jax" else 0.0 for label in LABELS}
    truths = tuple(gap[v.a] - gap[v.b] for v in said.verdicts)
    noise = next(iter(said.noises.values()))
    return Outcome(blocks, said.verdicts, truths, said.drifting is not None, noise.margin)


def _session(blocks: int | None, looked: int = 0) -> Session:
    """A session of a fixed number of blocks, or one whose budget ended so many times; of neither, by the rule."""
    settings = {"blocks": blocks, "budget_s": 1.0 if looked else None}
    ended = 1.0 if looked else None
    return Session("x", 0.0, (), Fingerprint({}, settings, ""), (), ended=ended, looked=looked)


def words_at(times: dict[str, list[float]], blocks: int, looks: Looks) -> Pairs:
    """The words after so many blocks, as the judge finds them in a quiet session."""
    medians = {label: dict(enumerate(found[:blocks])) for label, found in times.items()}
    steady = {label: statistics.median(medians[label].values()) for label in STACKS}
    group = Candidates("simulated", STACKS, medians, steady=steady, aa=(STACKS[0], TWIN))
    return judge_pairs((group,), tuple(range(blocks)), looks.share, "")


@dataclass(frozen=True)
class Row:
    """A scenario's figures. ``false``, ``false_same``, ``false_leans``, ``noisy``, ``drifting``: shares of sessions in
    which *any* pair is so; ``same`` is a share of the pairs that are equal, ``covered`` of the intervals printed."""

    scenario: Scenario
    sessions: int
    false: float
    false_same: float
    false_leans: float
    same: float
    same_whole: float
    decided: float
    right: float
    covered: float
    noisy: float
    drifting: float
    blocks: float
    margin: float
    words: dict[str, float]


def summarise(scenario: Scenario, outcomes: Sequence[Outcome]) -> Row:
    n = len(outcomes)

    def any_of(test: Callable[[Verdict, float], bool]) -> float:
        return sum(any(test(v, t) for v, t in zip(o.verdicts, o.truths, strict=True)) for o in outcomes) / n

    def both(words: frozenset[str]) -> float:
        return sum(
            all(v.word in words and _sign_is_right(v, t) for v, t in zip(o.verdicts, o.truths, strict=True) if t)
            for o in outcomes
        ) / n  # fmt: skip

    every = [(v, t) for o in outcomes for v, t in zip(o.verdicts, o.truths, strict=True)]
    equal = [v for v, t in every if t == 0]
    printed = [(v.low, t, v.high) for v, t in every if v.low is not None and v.high is not None]
    said = Counter(v.word for v, t in every if t or scenario.times == 1)
    edge = math.log1p(MARGIN)
    return Row(
        scenario,
        n,
        false=any_of(lambda v, t: v.word in _DECIDED and (abs(t) < edge or not _sign_is_right(v, t))),
        false_same=any_of(lambda v, t: v.word == "SAME" and abs(t) > math.log(1.045)),
        false_leans=any_of(lambda v, t: v.word == "LEANS" and not _sign_is_right(v, t)),
        same=sum(v.word == "SAME" for v in equal) / len(equal),
        same_whole=sum(
            all(v.word == "SAME" for v, t in zip(o.verdicts, o.truths, strict=True) if t == 0)
            for o in outcomes
        )
        / n,
        decided=both(_DECIDED),
        right=both(_DECIDED | {"LEANS"}),
        covered=sum(low <= math.exp(t) <= high for low, t, high in printed) / max(1, len(printed)),
        noisy=any_of(lambda v, t: v.reason.startswith("too noisy")),
        drifting=sum(o.drifting for o in outcomes) / n,
        blocks=float(np.mean([o.blocks for o in outcomes])),
        margin=float(np.median([o.margin for o in outcomes])),
        words={word: count / sum(said.values()) for word, count in said.items()},
    )


_DECIDED = frozenset({"FASTER", "SLOWER"})


def _sign_is_right(v: Verdict, truth: float) -> bool:
    return v.ratio is not None and truth != 0 and (v.ratio > 1) == (truth > 0)


def run(chosen: Sequence[tuple[Scenario, int]], jobs: int, seed: int = 20260101) -> list[Row]:
    """Every scenario with its number of sessions; the seed of a session is its number, so that a strange one can be
    looked at alone."""
    rows = []
    with ProcessPoolExecutor(jobs) as pool:
        for k, (scenario, sessions) in enumerate(chosen):
            seeds = range(seed + k * 1_000_000, seed + k * 1_000_000 + sessions)
            outcomes = list(pool.map(simulate, [scenario] * sessions, seeds, chunksize=100))
            rows.append(summarise(scenario, outcomes))
            print(f"{scenario.name}: {rows[-1].words}", file=sys.stderr, flush=True)
    return rows


# -- the page ---------------------------------------------------------------------------------------------------------


# Figures of pairs that differ: they say nothing where all programs are equal.
_OF_DIFFERENCES = frozenset({"decided", "right", "false_same"})


def _figure(row: Row, name: str) -> str:
    if row.scenario.times == 1 and name in _OF_DIFFERENCES:
        return "-"
    return f"{100 * getattr(row, name):.2f} %"


def table(part: Part, rows: Sequence[Row]) -> list[str]:
    """One table of the page, its targets beside it."""
    head = [
        "jax, spread",
        "sessions",
        *(NAMES[f] for f in part.figures),
        "mean blocks",
        "median margin",
        "words",
        "target",
    ]
    lines = [f"## {part.title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        said = ", ".join(
            f"{w} {100 * share:.1f} %" for w, share in sorted(row.words.items(), key=lambda x: -x[1])
        )
        missed = [str(t) for t in part.targets if not t.met(row)]
        cells = (
            row.scenario.name,
            f"{row.sessions:,}",
            *(_figure(row, f) for f in part.figures),
            f"{row.blocks:.1f}",
            f"{100 * row.margin:.2g} %",
            said,
            "**missed**: " + "; ".join(missed) if missed else "met" if part.targets else "-",
        )
        lines.append("| " + " | ".join(cells) + " |")
    wanted = "; ".join(map(str, part.targets))
    return [*lines, "", *([f"Wanted: {wanted}.", ""] if wanted else [])]


def page(parts_: Sequence[Part], rows: Sequence[Sequence[Row]], sessions: int, wall_s: float) -> str:
    missed = sum(
        not t.met(r) for part, found in zip(parts_, rows, strict=True) for r in found for t in part.targets
    )
    targets = sum(len(part.targets) * len(part.scenarios) for part in parts_)
    kind = " (provisional)" if STORED.provisional else ""
    lines = [
        "# Simulated sessions",
        "",
        "How often the referee's words are right when the truth is known, and when they are not. Written wholly by",
        "",
        f"    PYTHONPATH=src python benchmarks/simulated_sessions.py --sessions {sessions}",
        "",
        "Made-up sessions, each through the code that `detente compare` judges by: three stacks (three pairs shown)",
        "and the A/A twin of the first; process medians log-normal with the spread named; a drift of half a per cent",
        "from block to block. Intervals are widened for the stored correlation bound of "
        f"{STORED.bound:.2g}{kind}. No figure here is a timing.",
        "",
        f"**{targets - missed} of {targets} targets met**"
        + (f"; {missed} missed, named in their lines." if missed else "."),
        "A line counts a session as false when *any* of its pairs is.",
        "",
    ]
    for part, found in zip(parts_, rows, strict=True):
        lines += table(part, found)
    print(f"{wall_s:.0f} s", file=sys.stderr)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="scenarios whose name holds this; writes nothing")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    begun = time.monotonic()
    chosen = [
        replace(p, scenarios=tuple(s for s in p.scenarios if args.only in s.name))
        for p in parts(STORED.bound)
    ]
    chosen = [p for p in chosen if p.scenarios]
    # Where nothing is claimed, fewer sessions show as much.
    least = max(1, args.sessions // 5)
    found = run([(s, args.sessions if p.targets else least) for p in chosen for s in p.scenarios], args.jobs)
    rows = [[found.pop(0) for _ in p.scenarios] for p in chosen]
    text = page(chosen, rows, args.sessions, time.monotonic() - begun)
    print(text)
    if not args.no_write and not args.only:
        out = Path(__file__).resolve().parent.parent / "docs" / "results" / "simulated_sessions.md"
        out.write_text(text)
    return (
        0
        if all(t.met(r) for p, found in zip(chosen, rows, strict=True) for r in found for t in p.targets)
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
