"""From a Result to the page. This is the only place that decides what is told, and in which order."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from detente.records.result import CellResult, Result, SessionHead
from detente.records.verdict import Verdict
from detente.report.break_even import first_losses, steps_to_lead
from detente.report.conditions import conditions
from detente.report.detail import (
    MEMORY,
    floor_section,
    memory_section,
    parity_section,
    runs_chart,
    start_section,
)
from detente.report.machine import machine_section
from detente.report.numbers import (
    BYTES,
    NOTHING,
    SECONDS,
    count,
    duration,
    margin,
    percent,
    quantity,
    seconds,
    significant,
    span,
)
from detente.report.page import (
    Chart,
    Column,
    Items,
    Mark,
    Page,
    Part,
    Section,
    Span,
    Statement,
    Style,
    Table,
    TableRow,
    Tone,
    Words,
    plain_text,
    strong,
    table_of,
    words,
)
from detente.report.sentences import SETTLED, TONES, Comparison, headline, interval, times, void_rows

# The one way of measuring that the table of rows shows: what a process took from the machine, if that was measured.
IMPORTED = (
    "Imported, not measured here: the figures are what the file says; the rules judged no more than that."
)
PEAKS = ("driver_peak", "process_peak", "live_tensors", "compiler_estimate")

_ORDER = ("ok", "void", "oom", "failed", "skipped")


def compose(result: Result) -> Page:
    """The page of a judged session."""
    groups = groups_of(result)
    several = len(groups) > 1
    parts: list[Part] = []
    if not groups:
        parts.append(Statement(words("Nothing has been measured in this session."), "warn", leads=True))
    if several:
        # The verdicts of all comparisons stand first, before the figures of any.
        parts.extend(_overview(result.session, groups))
        parts.extend(_session_notes(result.session))
    for group in groups:
        told = _group_parts(result.session, group, alone=not several)
        parts.extend([Section(_group_title(group), told)] if several else told)
    if not groups:
        parts.extend(_session_notes(result.session))
    parts.append(machine_section(result))
    title = "; ".join(_group_title(g) for g in groups) if not several else _many_title(groups)
    return Page(title or "an empty session", _kicker(result.session), tuple(parts))


def _overview(session: SessionHead, groups: tuple[Comparison, ...]) -> tuple[Part, ...]:
    firsts = [(g, headline(session, g)) for g in groups]
    pairs = [v for g in groups for v in g.verdicts]
    settled = sum(v.word in SETTLED for v in pairs)
    share = settled if settled < len(pairs) else "all"
    lead = f"{len(groups)} comparisons; {share} of {count(len(pairs), 'pair')} settled."
    items = [
        Statement(words(strong(f"{_group_title(g)}."), " ", said[0].words), said[0].tone)
        for g, said in firsts
    ]
    return Statement(words(lead), "plain", leads=True), Items(tuple(items))


def groups_of(result: Result) -> tuple[Comparison, ...]:
    """The rows of a result by what may be compared, each group sorted: measured rows first, the fastest on
    top."""
    by: dict[str, list[CellResult]] = {}
    for cell in result.cells:
        name = cell.group or "/".join((cell.workload, cell.size, cell.contract, cell.precision, cell.device))
        by.setdefault(name, []).append(cell)
    found = []
    for name, cells in by.items():
        aa = result.session.aa.get(name)
        # The second row of the A/A pair is named in its verdict; a session without one may still have the
        # row.
        pair = (aa.a, aa.b) if aa is not None else tuple(c.label for c in cells)
        twin = next((x for x in pair if x.endswith("#aa")), aa.a if aa is not None else None)
        found.append(
            Comparison(
                name,
                tuple(sorted(cells, key=_rank)),
                tuple(v for v in result.verdicts if v.group == name and twin not in (v.a, v.b)),
                result.session.margins.get(name, 0.02),
                aa,
                twin,
            )
        )
    return tuple(found)


def _rank(cell: CellResult) -> tuple[int, float, str]:
    place = _ORDER.index(cell.status) if cell.status in _ORDER else len(_ORDER)
    return place, cell.steady_s.median if cell.steady_s else float("inf"), cell.label


def _names(group: Comparison) -> tuple[str, ...]:
    """Workload, size, contract, precision, device: from the group's name, whose first part may hold
    slashes."""
    return tuple(group.name.rsplit("/", 4))


def _group_title(group: Comparison) -> str:
    workload, size, contract, precision, device = _names(group)
    # ``auto`` is what was asked for; the rows know where they ran.
    real = {c.device for c in group.cells if c.status == "ok"}
    where = real.pop() if len(real) == 1 else device
    return f"{workload} {size}: {contract} in {precision} on {where}"


def _many_title(groups: tuple[Comparison, ...]) -> str:
    names = list(dict.fromkeys(" ".join(_names(g)[:2]) for g in groups))
    return (
        f"{', '.join(names[:-1])} and {names[-1]}"
        if len(names) > 1
        else f"{names[0]}, {len(groups)} comparisons"
    )


def _kicker(session: SessionHead) -> str:
    when = datetime.datetime.fromtimestamp(session.started, datetime.UTC)
    lasted = (
        "of unknown length (the clock was set back)" if session.wall_s is None else duration(session.wall_s)
    )
    origin = "" if session.imported is None else " · imported, not measured here"
    return f"détente · {when:%Y-%m-%d %H:%M} UTC · {lasted} · session {session.id}{origin}"


def _group_parts(session: SessionHead, group: Comparison, alone: bool) -> tuple[Part, ...]:
    drifting = session.state == "drifting"
    parts: list[Part] = [*headline(session, group), *_starts(group), *_basis(session, group)]
    if alone:
        parts.extend(_session_notes(session))
    if not drifting:
        parts.extend(_ratio_chart(group))
    parts.append(
        Section(
            "Rows", (*_steady_chart(group), *runs_chart(group), _rows_table(group, session), *_reasons(group))
        )
    )
    if group.verdicts and not drifting:
        parts.append(Section("Pairs", (_pairs_table(group),)))
    parts.append(Section("Audit", (_findings(group),)))
    details = (parity_section(group), start_section(group), floor_section(group), memory_section(group))
    parts.extend(s for s in details if s)
    return tuple(parts)


def _session_notes(session: SessionHead) -> tuple[Statement, ...]:
    notes = []
    if session.imported is not None:
        notes.append(Statement(words(IMPORTED), "warn"))
    notes.extend(Statement(words(f"{line}."), "quiet") for line in session.again)
    if session.state == "interrupted":
        again = ""
        if session.imported is None:
            again = f"; `detente compare --resume {session.id}` continues it"
        text = f"This session was interrupted{again}. Only whole blocks are judged."
        notes.append(Statement(words(text), "warn"))
    # These two say what the page says already.
    if session.note and session.note != "interrupted" and session.state != "drifting":
        notes.append(Statement(words(session.note), "quiet"))
    return tuple(notes)


# What says, where it could not be checked, that a row was proved at its beginning alone.
_LATER = "window-not-proved"


def _basis(session: SessionHead, group: Comparison) -> tuple[Statement, ...]:
    own = group.own()
    fine = [c for c in own if c.status == "ok"]
    planned = ", ".join(f"{n} {s}" for s in _ORDER if (n := sum(c.status == s for c in own)))
    said = [f"{count(len(own), 'row')} planned: {planned}."]
    if session.blocks:
        said.append(f"{count(session.blocks, 'block')} of fresh processes, in random order.")
    said.extend(conditions(session, group))
    open_ = [c.label for c in fine if not _proof(c)[0].startswith("proved")]
    if fine and not open_:
        later = _later(fine)
        cut = {c.parity.precision_at for c in fine if c.parity is not None and c.parity.precision_at}
        said.append(
            f"Every measured row is proved to compute the same at {', '.join(sorted(cut))}, two of every kind of layer "
            "at full width: a reference of the whole does not fit this machine, and what is timed was held against the "
            "other rows by its losses alone."
            if cut
            else "Every measured row is proved to compute the same."
            if not later
            else f"Every measured row is proved to compute the same in its first steps; {later}."
        )
    told = [Statement(words(" ".join(said)), "quiet"), *_less(session, group)]
    if open_:
        text = f"Not wholly proved to compute the same: {', '.join(open_)}. {_why_open(group)}"
        told.append(Statement(words(text.strip()), "warn"))
    return tuple(told)


def _later(cells: Sequence[CellResult]) -> str:
    """Of which rows what was timed after the first steps is not proved, and why; empty where it is of all."""
    open_ = [(c.label, f) for c in cells for f in c.findings if (f.rule, f.severity) == (_LATER, "unchecked")]
    drifting = list(dict.fromkeys(label for label, f in open_ if "drift" in f.evidence))
    left = [label for label in dict.fromkeys(label for label, _ in open_) if label not in drifting]
    said = "what was timed after them was "
    parts = (
        f"{said}not taken again by the reference: {', '.join(left)}" if left else "",
        f"{said}taken again, where eager itself drifts too far to tell: {', '.join(drifting)}"
        if drifting
        else "",
    )
    return "; ".join(filter(None, parts))


def _why_open(group: Comparison) -> str:
    """What is missing for the whole proof, and why where it is known."""
    rows = [c for c in group.own() if c.status == "ok" and c.parity is not None]
    lack = {
        level
        for c in rows
        for level in ("same_function", "same_precision")
        if getattr(c.parity, level) == "not checked"
    }
    if not lack:
        return ""
    own = any(c.workload.startswith("hf:") or ".py:" in c.workload for c in rows)
    if own and lack == {"same_function"} and all(c.stack.startswith("jax") for c in rows):
        return (
            "A model that JAX has alone is held against itself in float64, tensor by tensor; whether another framework "
            "computes the same, a pair would say: torch_file.py:make,jax_file.py:make."
        )
    said = {
        "same_function": "the proof in fp64 at a small size",
        "same_precision": "the proof in the timed process",
    }
    return f"What is missing: {' and '.join(said[x] for x in sorted(lack))}."


def _starts(group: Comparison) -> tuple[Statement, ...]:
    """The first step beside the verdict: a lead of milliseconds may cost a minute before it begins."""
    said = first_losses(group.own())
    return (Statement(said, "plain"),) if said else ()


def _less(session: SessionHead, group: Comparison) -> tuple[Statement, ...]:
    """Rows that were measured less than the others, with the reason: their figures stand, their verdicts cannot."""
    alike: dict[tuple[int, str], list[str]] = {}
    for c in group.own():
        if c.status == "ok" and c.reason and c.steady_s is not None:
            alike.setdefault((c.steady_s.processes, c.reason), []).append(c.label)
    return tuple(
        Statement(
            words(strong(", ".join(labels)), f" ran in {n} of {count(session.blocks, 'block')}: {why}."),
            "warn",
        )
        for (n, why), labels in alike.items()
    )


def _ratio_chart(group: Comparison) -> tuple[Chart, ...]:
    marks = tuple(
        Mark(f"{v.a} / {v.b}", v.ratio, v.low, v.high, v.word, TONES[v.word], times(v))
        for v in group.verdicts
        if v.ratio is not None and v.word != "VOID"
    )
    title = (
        "Time of the first over time of the second: left of 1 the first is faster. "
        f"The band is the margin of {margin(group.margin)}."
    )
    return (Chart("ratios", title, marks, group.margin),) if marks else ()


def _steady_chart(group: Comparison) -> tuple[Chart, ...]:
    marks = tuple(
        Mark(
            c.label,
            c.steady_s.median,
            c.steady_s.low,
            c.steady_s.high,
            tone="quiet" if c.label == group.twin else "plain",
            label=seconds(c.steady_s.median),
        )
        for c in group.cells
        if c.status == "ok" and c.steady_s is not None
    )
    return (Chart("intervals", "Seconds per step in the steady state", marks),) if marks else ()


# The first word decides the colour; "not checked" is never said as if it were fine.
_PROOFS: dict[tuple[str, str], tuple[str, Style]] = {
    ("passed", "passed"): ("proved", "good"),
    ("inherited", "passed"): ("proved, fp64 on cpu", "good"),
    ("not checked", "passed"): ("same precision only", "warn"),
    ("passed", "not checked"): ("same function only", "warn"),
    ("inherited", "not checked"): ("same function only", "warn"),
}


def _proof(cell: CellResult) -> tuple[str, Style]:
    p = cell.parity
    if p is None:
        return ("not checked", "warn") if cell.status == "ok" else (NOTHING, "quiet")
    if "failed" in (p.same_function, p.same_precision):
        return "failed", "bad"
    if p.precision_at and p.same_precision == "passed" and p.same_function != "not checked":
        return f"proved at {p.precision_at}", "warn"
    return _PROOFS.get((p.same_function, p.same_precision), ("not checked", "warn"))


def _audit(cell: CellResult) -> tuple[str, Style]:
    """How many rules have something to say of a row; the audit's own section names them."""
    by = {s: len({f.rule for f in cell.findings if f.severity == s}) for s in ("void", "warn", "unchecked")}
    open_ = f", {by['unchecked']} unchecked" if by["unchecked"] else ""
    if by["void"]:
        return "void", "bad"
    if by["warn"]:
        return f"{count(by['warn'], 'warning')}{open_}", "warn"
    if cell.status != "ok":
        return NOTHING, "quiet"
    return (f"clean{open_}", "plain" if open_ else "good")


def _rows_table(group: Comparison, session: SessionHead) -> Table:
    unit, each = _per_second(group, session)
    label = next((x for x in PEAKS if any(x in c.memory for c in group.cells)), "")
    columns = (
        Column("stack"),
        Column("steady", "right"),
        Column("95 % interval"),
        Column("n", "right"),
        Column("first", "right"),
        Column("second", "right"),
        Column("memory", "right"),
        Column(f"{unit}/s", "right"),
        Column("of limit", "right"),
        Column("proof"),
        Column("audit", wide=True),
    )
    rows = []
    for c in group.cells:
        name = words(strong(c.label), Span(_beside(c, group), "quiet"))
        proof, audit = _proof(c), _audit(c)
        # The times of a void row are times of another computation: not shown, so that nobody divides by them.
        if c.status == "ok" and c.steady_s is not None:
            s = c.steady_s
            cells: tuple[str, ...] = (
                seconds(s.median),
                span(s.median, s.low, s.high, SECONDS) or NOTHING,
                str(s.processes),
                seconds(c.first_s),
                seconds(c.second_s),
                quantity(c.memory.get(label), BYTES),
                significant(each / s.median) if each else NOTHING,
                percent(c.floor.share) if c.floor else NOTHING,
            )
        else:
            cells = (c.status, *[NOTHING] * 7)
        tone: Tone = {"void": "bad", "failed": "bad", "oom": "warn", "skipped": "quiet"}.get(
            c.status, "plain"
        )  # type: ignore[assignment]
        rows.append(
            TableRow((name, *(words(x) for x in cells), words(Span(*proof)), words(Span(*audit))), tone)
        )
    memory = f"memory: {MEMORY[label]}. " if label else ""
    note = words(
        "steady: median over n processes of seconds per step. first: from a built model to the first loss on the "
        f"host, compilation included. {memory}of limit: the machine's physical floor over steady."
    )
    return table_of(columns, tuple(rows), note)


def _per_second(group: Comparison, session: SessionHead) -> tuple[str, int]:
    """What one step works through, and how many of them: tokens where the workload has sequences, else samples; 0 where
    the workload says neither."""
    costs = session.fingerprint.settings.get("workloads", {}).get(group.name, {})
    dims = costs.get("dims") or {}
    batch, sequence = dims.get("batch", 0), dims.get("sequence", 0)
    return ("tokens", batch * sequence) if batch and sequence else ("samples", batch)


def _beside(cell: CellResult, group: Comparison) -> str:
    if cell.label == group.twin:
        return " A/A"
    return " out of the box" if cell.contract == "out-of-the-box" else ""


def _reasons(group: Comparison) -> tuple[Part, ...]:
    said = void_rows(group)
    return (Items(said),) if said else ()


def _pairs_table(group: Comparison) -> Table:
    columns = (
        Column("pair"),
        Column("verdict"),
        Column("ratio"),
        Column("interval"),
        Column("ahead after", "right"),
        Column("blocks"),
        Column("why", wide=True),
    )
    cells = {c.label: c for c in group.cells}
    note = words(
        "ratio: how many times faster or slower the first is; interval: on the same scale, else time of the first over "
        "time of the second. 95 % (for SAME 90 %), for all pairs and looks together. "
        "ahead after: steps until the faster of the two has caught up with its slower first step."
    )
    return table_of(columns, tuple(_pair_row(v, cells) for v in group.verdicts), note)


def _pair_row(v: Verdict, cells: dict[str, CellResult]) -> TableRow:
    pair = words(strong(v.a), " : ", strong(v.b))
    style: Style = {"good": "good", "bad": "bad", "warn": "warn"}.get(TONES[v.word], "plain")  # type: ignore[assignment]
    said: Words = words(times(v) or (f"within {margin(v.margin)}" if v.word == "SAME" else NOTHING))
    blocks = (
        f"{v.blocks} of about {v.needed}" if v.word in ("UNDECIDED", "LEANS") and v.needed else str(v.blocks)
    )
    # A settled pair is explained by its own interval and margin; an open or a void one is not.
    why = words(NOTHING if v.word in ("FASTER", "SLOWER", "SAME") else v.reason or NOTHING)
    won, lost = (v.a, v.b) if v.word == "FASTER" else (v.b, v.a)
    known = v.word in ("FASTER", "SLOWER") and {won, lost} <= cells.keys()
    steps = steps_to_lead(cells[won], cells[lost]) if known else None
    ahead = NOTHING if steps is None else count(steps, "step")
    told = (words(Span(v.word, style)), said, words(interval(v) or NOTHING), words(ahead), words(blocks))
    return TableRow((pair, *told, why))


def _findings(group: Comparison) -> Items:
    """Findings that are the same in several rows are told once, with the rows that have them."""
    by: dict[tuple[str, str, str], list[str]] = {}
    for c in group.cells:
        for f in c.findings:
            if f.severity != "unchecked":
                by.setdefault((f.severity, f.rule, f.what), []).append(c.label)
    items = []
    for (severity, rule, what), rows in sorted(by.items(), key=lambda kv: (kv[0][0] != "void", kv[0])):
        tone: Tone = "bad" if severity == "void" else "warn"
        items.append(
            Statement(words(strong(rule), f" {severity} in ", strong(", ".join(rows)), f": {what}"), tone)
        )
    open_: dict[str, set[str]] = {}
    fine = {c.label for c in group.cells if c.status == "ok"}
    for c in group.cells:
        for f in c.findings:
            if f.severity == "unchecked":
                open_.setdefault(f.rule, set()).add(c.label)
    if open_:
        rules = " ".join(sorted(open_, key=lambda r: (len(r), r)))
        rows_ = ", ".join(c.label for c in group.cells if any(c.label in x for x in open_.values()))
        where = "" if all(x >= fine for x in open_.values()) else f" (in {rows_})"
        items.append(Statement(words("Not checked, for want of evidence: ", rules, where, "."), "quiet"))
    if not items:
        items.append(Statement(words("No rule has anything to say of these rows."), "good"))
    explained = [i for i in items if i.tone in ("bad", "warn")]
    if explained:
        code = plain_text(explained[0].words).split(" ", 1)[0]
        items.append(
            Statement(words(f"`detente rule {code}` says what that rule is, and how to fix it."), "quiet")
        )
    return Items(tuple(items))
