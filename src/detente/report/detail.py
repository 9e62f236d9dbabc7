"""The sections behind the verdict: proof, start and compilation, physical floor, memory."""

from __future__ import annotations

from collections.abc import Sequence

from detente.records.result import CellResult
from detente.report.numbers import BYTES, FLOPS, NOTHING, count, percent, quantity, seconds, significant
from detente.report.page import (
    Chart,
    Column,
    Mark,
    Part,
    Section,
    Span,
    Style,
    TableRow,
    Words,
    strong,
    table_of,
    words,
)
from detente.report.sentences import Comparison

_STATES: dict[str, tuple[str, Style]] = {
    "passed": ("passed", "good"),
    "failed": ("failed", "bad"),
    "inherited": ("passed on cpu", "good"),
    "not checked": ("not checked", "warn"),
}

# Labels of Evidence.memory. Each is a column of its own; they are never added or merged.
MEMORY: dict[str, str] = {
    "live_tensors": "live tensors, allocator's peak",
    "compiler_estimate": "compiler's estimate",
    "planned_process": "peak of a step in a process, planned",
    "step_peak": "peak of a step in a process, measured",
    "process_peak": "peak of the process, compiling included",
    "planned_parameters": "parameters and buffers, planned",
    "planned_gradients": "gradients, planned",
    "planned_state": "optimizer's state, planned",
    "planned_activations": "activations, planned",
    "planned_temporary": "gradients and activations, planned",
    "planned_base": "the process without its tensors, planned",
    "planned_compiler": "left in the process by the compiler, planned",
    "planned_peak": "tensors at once, planned",
    "planned_kept": "kept by the allocator beside them, planned",
    "driver_peak": "driver's peak of the process",
    "smallest_cap": "smallest cap that still runs",
    "smallest_cap_below": "largest cap that does not",
    "smallest_cap_empty": "smallest cap of an empty step",
}


def parity_section(group: Comparison) -> Section | None:
    """Both levels of the proof, and the tensor that came nearest to its bound."""
    cells = [c for c in group.cells if c.parity is not None]
    if not cells:
        return None
    columns = (
        Column("stack"),
        Column("same function (fp64)"),
        Column(f"same precision ({group.cells[0].precision})"),
        Column("tensors", "right"),
        Column("too small", "right"),
        Column("of its bound", "right"),
        Column("unseen below", "right"),
        Column("nearest tensor", wide=True),
    )
    rows = tuple(TableRow((words(strong(c.label)), *_parity_cells(c))) for c in cells)
    notes = words(
        f"Same function: {_where(cells)} in fp64, every output, gradient and update within 1e-9. Same precision: in "
        "the timed process, every tensor against the fp64 reference, within 4 times PyTorch eager's own error; "
        "tensors too small to be judged are only counted. Unseen below: a relative error of a gradient (of an output, "
        f"where there is none) that the second level could not tell from rounding.{_cut(cells)}{_kinks(cells)}"
    )
    return Section("Proof", (table_of(columns, rows, notes),), detail=True)


def _where(cells: Sequence[CellResult]) -> str:
    """At which size the function was proved."""
    sizes = {c.parity.function_at for c in cells if c.parity is not None and c.parity.function_at}
    told = {"own": "at its own size", "cut": "with two of every kind of layer (size cut)"}
    return ", ".join(told.get(s, f"at size {s}") for s in sorted(sizes)) or "at size tiny"


def _cut(cells: Sequence[CellResult]) -> str:
    """Where the second level was proved, if not in the timed process."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.parity is not None and cell.parity.precision_at:
            found.setdefault(cell.parity.precision_at, []).append(cell.label)
    return "".join(
        f" Of {', '.join(labels)} the second level was proved at {size}, two of every kind of layer at full width, "
        "because an fp64 reference of the whole does not fit this machine; the timed processes have the other rows' "
        "losses (losses-apart)."
        for size, labels in found.items()
    )


def _kinks(cells: Sequence[CellResult]) -> str:
    """Where the function has no derivative, in words."""
    found = next((c.parity.kinks for c in cells if c.parity is not None and c.parity.kinks is not None), None)
    if found is None or not (found.met or found.reason):
        return ""
    if found.reason:
        return f" Kinks were not looked for ({found.reason}): nine fair runs say how far PyTorch's own error goes."
    met = ", ".join(f"{n} {name}" for name, n in sorted(found.met.items()))
    said = f" The function has kinks ({met}): PyTorch eager's own error is the largest of nine fair runs"
    if found.moved:
        said += (
            f"; {count(found.moved, 'bias', 'biases')} in front of a ReLU moved by at most "
            f"{significant(found.furthest)}, so that the nearest input is "
            f"{significant(found.nearest or 0.0)} standard deviations from zero"
        )
    if found.left:
        said += f"; in front of {count(found.left, 'ReLU')} no bias could be moved"
    return said + "."


def _parity_cells(cell: CellResult) -> tuple[Words, ...]:
    p = cell.parity
    assert p is not None
    near = f"{p.worst.kind} {p.worst.name}" if p.worst else NOTHING
    if p.reason:
        near = f"{near}: {p.reason}" if p.worst else p.reason
    return (
        words(Span(*_STATES.get(p.same_function, (p.same_function, "plain")))),
        words(Span(*_STATES.get(p.same_precision, (p.same_precision, "plain")))),
        words(str(p.tensors)),
        words(str(p.listed)),
        words(percent(p.share) if p.share is None or p.share < 10 else f"{significant(p.share)}x"),
        words(NOTHING if p.unseen is None else significant(p.unseen)),
        words(near),
    )


def start_section(group: Comparison) -> Section | None:
    """What happens before the steady state: import, build, the three named runs, compilation and its
    cache."""
    cells = [c for c in group.cells if c.status == "ok" and c.first_s is not None]
    if not cells:
        return None
    columns = (
        Column("stack"),
        Column("import", "right"),
        Column("build", "right"),
        Column("first", "right"),
        Column("second", "right"),
        Column("third", "right"),
        Column("first, cold cache", "right"),
        Column("first, warm cache", "right"),
        Column("compilations", "right"),
        Column("cache"),
    )
    rows = []
    for c in cells:
        k = c.compile
        compiled = NOTHING if k is None else f"{k.events} in {seconds(k.seconds)}" if k.events else "0"
        figures = (
            *(seconds(x) for x in (c.import_s, c.build_s, c.first_s, c.second_s, c.third_s)),
            seconds(k.cold_first_s if k else None),
            seconds(k.warm_first_s if k else None),
            compiled,
            k.cache_state if k else NOTHING,
        )
        rows.append(TableRow((words(strong(c.label)), *(words(x) for x in figures))))
    return Section("Start", (table_of(columns, tuple(rows)),), detail=True)


def runs_chart(group: Comparison) -> tuple[Chart, ...]:
    """First, second and steady step of every row on one axis: what stands before the steady state, at a glance."""
    marks = []
    for c in group.cells:
        if c.status != "ok" or c.label == group.twin:
            continue
        runs = (
            ("first", c.first_s),
            ("second", c.second_s),
            ("steady", c.steady_s.median if c.steady_s else None),
        )
        marks.extend(Mark(c.label, x, series=name, label=seconds(x)) for name, x in runs if x)
    return (Chart("runs", "First, second and steady step", tuple(marks)),) if marks else ()


def _practices(cells: list[CellResult]) -> tuple[Part, ...]:
    """What each row follows of its framework's documented practice."""
    told = [c for c in cells if c.practice]
    rows = tuple(TableRow((words(strong(c.label)), words(c.practice))) for c in told)
    return (table_of((Column("stack"), Column("practice", wide=True)), rows),) if rows else ()


def _phases(cells: list[CellResult]) -> tuple[Part, ...]:
    """Where a process's time goes, phase by phase."""
    told = [c for c in cells if c.phases]
    if not told:
        return ()
    names = list(dict.fromkeys(name for c in told for name in c.phases))
    columns = (Column("stack"), *(Column(n, "right") for n in names), Column("in all", "right"))
    rows = tuple(
        TableRow(
            (
                words(strong(c.label)),
                *(words(seconds(c.phases.get(n))) for n in names),
                words(seconds(sum(c.phases.values()))),
            )
        )
        for c in told
    )
    notes = words(
        "Where a process's time goes, by the parent's clock: the median of the processes behind a row's first, which "
        "also compiles cold, proves gradients and runs every probe."
    )
    return (table_of(columns, rows, notes),)


def floor_section(group: Comparison) -> Section | None:
    """The physical floor: what this machine could do at best, by its own measured peaks."""
    cells = [c for c in group.cells if c.status == "ok" and c.floor is not None]
    if not cells:
        return None
    columns = (
        Column("stack"),
        Column("floor", "right"),
        Column("steady", "right"),
        Column("of limit", "right"),
        Column("bound by"),
        Column("work", "right"),
        Column("peak", "right"),
        Column("traffic", "right"),
        Column("bandwidth", "right"),
        Column("note", wide=True),
    )
    rows, marks = [], []
    for c in cells:
        f = c.floor
        assert f is not None
        steady = c.steady_s.median if c.steady_s else None
        figures = (
            seconds(f.seconds),
            seconds(steady),
            percent(f.share),
            f.bound,
            quantity(f.flops, FLOPS),
            quantity(f.peak_flops, FLOPS, "/s"),
            quantity(f.bytes, BYTES),
            quantity(f.peak_bytes, BYTES, "/s"),
            f.note or NOTHING,
        )
        rows.append(TableRow((words(strong(c.label)), *(words(x) for x in figures))))
        if f.share is not None:
            marks.append(Mark(c.label, f.share, label=percent(f.share)))
    note = words(
        "floor: the longer of work over the best product rate and compulsory traffic over the best copy rate that any "
        "stack reached in this session."
    )
    parts: tuple[Part, ...] = (table_of(columns, tuple(rows), note),)
    if marks:
        parts = (Chart("shares", "Share of the machine's limit", tuple(marks)), *parts)
    return Section("Physical floor", parts, detail=True)


def memory_section(group: Comparison) -> Section | None:
    """Memory by label; measured in processes of its own."""
    cells = [c for c in group.cells if c.memory and c.status != "void"]
    labels = list(
        dict.fromkeys(
            x for x in (*MEMORY, *(k for c in cells for k in c.memory)) if any(x in c.memory for c in cells)
        )
    )
    if not labels:
        return None
    columns = (Column("stack"), *(Column(MEMORY.get(x, x.replace("_", " ")), "right") for x in labels))
    rows = tuple(
        TableRow((words(strong(c.label)), *(words(quantity(c.memory.get(x), BYTES)) for x in labels)))
        for c in cells
    )
    marks = tuple(
        Mark(
            c.label,
            float(c.memory[x]),
            series=MEMORY.get(x, x.replace("_", " ")),
            label=quantity(c.memory[x], BYTES),
        )
        for x in labels
        # A part of a plan is no peak.
        if not x.startswith("planned_") or x == "planned_process"
        for c in cells
        if x in c.memory
    )
    measured = [x for x in labels if not x.startswith("planned_")]
    several = f"{len(measured)} ways of measuring, which must not be compared with one another; "
    plans = (
        ""
        if len(measured) == len(labels)
        else " Plans were made before the row ran; its step's peak is their measure."
    )
    note = words(
        f"{several if len(measured) > 1 else ''}peaks are measured in processes of their own, never in timed "
        f"ones.{plans}"
    )
    return Section(
        "Memory",
        (Chart("bars", "Peak, by how it was measured", marks), table_of(columns, rows, note)),
        detail=True,
    )


def loss_text(losses: tuple[float, ...]) -> str:
    """The losses of the three timed steps."""
    return ", ".join(significant(x, 6) for x in losses) or NOTHING
