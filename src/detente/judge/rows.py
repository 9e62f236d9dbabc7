"""Rows: what the processes of one cell add up to, before anything is judged."""

from __future__ import annotations

import statistics as plain
from collections.abc import Callable, Iterable
from dataclasses import replace

from detente.judge.parity import Proofs, Proved, parity_column
from detente.judge.rules.narrow_sums import long_sums, told
from detente.judge.rules.rule import Row
from detente.judge.statistics import geometric_interval
from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.records.precision import PRECISIONS
from detente.records.program import Program
from detente.records.result import CompileColumn, ParityColumn, Steady
from detente.records.sample import process_median
from detente.records.session import Process, Session


def timing_processes(session: Session, cell: Cell) -> tuple[Process, ...]:
    """The timing processes of a cell, in the order in which they ran, one per block. A block that was interrupted
    ran again whole, so that the last process of a block is the one that its neighbours are paired with."""
    last: dict[int, Process] = {}
    outside = []
    for p in session.of(cell):
        if p.block < 0:
            outside.append(p)
        else:
            last[p.block] = p
    return (*outside, *sorted(last.values(), key=lambda p: p.started))


def _with_replays(session: Session, process: Process) -> Process:
    """The process with what was taken again of its window."""
    window, replays = process.evidence.window, session.replays_of(process.cell, process.block)
    if window is None or not replays:
        return process
    return replace(process, evidence=replace(process.evidence, window=replace(window, replays=replays)))


def block_medians(row: Row) -> dict[int, float]:
    """Block -> median seconds per step of the row's process in it."""
    found = {p.block: process_median(p.evidence.samples) for p in row.fine if p.block >= 0}
    return {block: median for block, median in found.items() if median}


def make_row(session: Session, cell: Cell) -> Row:
    """The row of a cell, parity and steady median included."""
    processes = tuple(_with_replays(session, p) for p in timing_processes(session, cell))
    others = tuple(p for p in session.processes if p.kind not in ("time", "prove") and p.cell == cell)
    row = Row(cell, processes, others)
    medians = [
        m for p in processes if p.evidence.status == "ok" and (m := process_median(p.evidence.samples))
    ]
    return replace(
        row,
        parity=_parity(session, cell, row),
        steady=plain.median(medians) if medians else None,
    )


def _parity(session: Session, cell: Cell, row: Row) -> ParityColumn:
    """The fp64 level comes from ``prove`` processes of the same workload, stack, arm and contract, at whatever size and
    device they ran; the other level from the timed processes, and from proofs at the cell's own precision, which are at
    another size where a reference at the cell's own does not fit."""
    function, precision, on_device, size, layer, cut = [], [], False, "", "", ""
    for p in session.processes:
        other = p.cell
        same = (other.workload, other.stack, other.arm, other.contract.name) == (
            cell.workload,
            cell.stack,
            cell.arm,
            cell.contract.name,
        )
        if p.kind != "prove" or not same or not p.evidence.errors:
            continue
        if other.contract.precision == "fp64":
            function.append(p.evidence.errors)
            size = other.size
            layer = layer or str(p.evidence.probes.get("layer", ""))
            on_device = on_device or other.device in (cell.device, row.platform)
        elif other.contract.precision == cell.contract.precision:
            precision.append(Proved(p.evidence.errors))
            cut = other.size if other.size != cell.size else ""
    timed = [_proved(p.evidence) for p in row.processes if p.evidence.errors]
    precision += timed
    memory = tuple(
        Proved(p.evidence.errors)
        for p in row.others
        if p.kind in ("memory", "smallest") and p.evidence.status == "ok" and p.evidence.errors
    )
    proofs = Proofs(tuple(function), on_device, tuple(precision), memory)
    column = parity_column(proofs, cell.contract.precision)
    return replace(
        column,
        kinks=next((k for p in row.processes if (k := p.evidence.kinks) is not None), None),
        function_at=size,
        precision_at="" if timed else cut,
        layer=layer,
        reason="; ".join(filter(None, (column.reason, _beside(column, layer, row)))),
    )


def _beside(column: ParityColumn, layer: str, row: Row) -> str:
    """What is known of why a row is another computation; empty where nothing is, or where it is none."""
    if column.same_function == "failed":
        return layer
    if column.same_precision == "failed" and PRECISIONS[row.cell.contract.precision].narrow_products:
        sums = long_sums(row)
        return f"{told(sums)}, a rounding for each (sums-narrow)" if sums else ""
    return ""


def _proved(evidence: Evidence) -> Proved:
    """Everything that a timed process proved from the loaded weights on."""
    window = evidence.window
    if window is None or not window.proved:
        return Proved(evidence.errors)
    return Proved(evidence.errors, window.errors, window.proved)


def steady_column(row: Row) -> Steady | None:
    """Median and 95 % interval over processes."""
    good = [p for p in row.fine if process_median(p.evidence.samples)]
    medians = [m for p in good if (m := process_median(p.evidence.samples))]
    if not medians:
        return None
    low, high = geometric_interval(medians) or (None, None)
    return Steady(plain.median(medians), low, high, len(medians), sum(len(p.evidence.samples) for p in good))


def median_of(processes: Iterable[Process], value: Callable[[Evidence], float | None]) -> float | None:
    """The median of a figure over processes, those without it left out."""
    known = [v for p in processes if (v := value(p.evidence)) is not None]
    return plain.median(known) if known else None


def phases_of(row: Row) -> dict[str, float]:
    """Median seconds by phase of the processes behind the first, or of the first alone."""
    later = [p.phases for p in (row.fine[1:] or row.fine) if p.phases]
    names = dict.fromkeys(name for phases in later for name in phases)
    return {name: plain.median(phases.get(name, 0.0) for phases in later) for name in names}


def cold_processes(row: Row) -> tuple[Process, ...]:
    """Processes whose compile wrote to the cache."""
    return tuple(p for p in row.fine if p.evidence.compile.cache_state == "miss")


def first_seconds(row: Row) -> float | None:
    """``first_s`` as the table shows it: of cold processes where there are any, else of all."""
    return median_of(cold_processes(row) or row.fine, lambda e: e.first_s)


def compile_column(row: Row) -> CompileColumn | None:
    """Compilations and their seconds, of cold processes where there are any; first steps cold and warm apart."""
    if not row.fine:
        return None
    cold = cold_processes(row)
    warm = tuple(p for p in row.fine if p.evidence.compile.cache_state == "hit")
    shown = cold or row.fine
    states = [p.evidence.compile.cache_state for p in shown]
    return CompileColumn(
        events=max(p.evidence.compile.events for p in shown),
        seconds=median_of(shown, lambda e: e.compile.seconds) or 0.0,
        cache_state=max(set(states), key=states.count),
        cold_first_s=median_of(cold, lambda e: e.first_s),
        warm_first_s=median_of(warm, lambda e: e.first_s),
        steady_events=max(p.evidence.compile.steady_events for p in row.fine),
    )


def memory_column(row: Row) -> dict[str, int]:
    """Bytes by label, the largest over the processes that measured memory. A timing process counts only for what a
    compiler says of its own program: its allocator held batches and proofs besides the step."""
    found: dict[str, int] = {}
    for p in row.others:
        for label, size in p.evidence.memory.items():
            found[label] = max(found.get(label, 0), size)
    for p in row.fine:
        size = p.evidence.memory.get("compiler_estimate")
        if size is not None:
            found.setdefault("compiler_estimate", size)
    return found


def captured(row: Row) -> tuple[Program, ...]:
    """The programs of a row, each content once."""
    found: dict[str, Program] = {}
    for p in (*row.processes, *row.others):
        for program in p.evidence.programs:
            found.setdefault(program.sha256, program)
    return tuple(found.values())
