"""A result, or a part of a step, may be remembered by its batch: fresh ones beside seen ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from detente.judge.rules.rule import Group, Row, Rule, each, on_gpu
from detente.judge.rules.window import helped, shared, windows
from detente.records.sample import Sample
from detente.records.session import Process
from detente.records.window import Window

# A queue of fresh batches may take so many times as long as one of batches that were seen: they come from memory, the
# others from a cache. What is remembered takes thousands of times less.
REMEMBERED = 3.0
# Of a step that moves a state a part is remembered, and the rest of it is computed: single steps in turns, by the clock
# and by processor time. Medians of 32 of four stacks lay between 0.96 and 1.07 (28 November).
REMEMBERED_IN_PART = 1.5
# Steps of either kind that have a median; of fewer twice as long, and by more than a neighbour's turns.
LEAST_IN_TURNS, REMEMBERED_OF_FEW = 8, 2.0
# Turns of a neighbour, 4 ms each, that a queue of batches may wait for.
TURNS_NS = 100_000_000


def _fresh_over_seen(fresh: Sample, seen: Sequence[Sample], shared: bool = False) -> float:
    """By the clock or by processor time, whichever says more: one turn of a neighbour in one of the queues of seen
    batches once hid a dictionary that answered 360 times as fast. Beside others (``shared``) by processor time alone: a
    turn in the queue of fresh ones is no work of theirs."""
    wall = (fresh.wall_ns / fresh.steps) / max(s.wall_ns / s.steps for s in seen)
    if not fresh.cpu_ns or not all(s.cpu_ns for s in seen):
        return wall
    cpu = (fresh.cpu_ns / fresh.steps) / max(s.cpu_ns / s.steps for s in seen)
    return cpu if shared and not _elsewhere(fresh.wall_ns, fresh.cpu_ns) else max(wall, cpu)


def _published(p: Process) -> tuple[Sample, ...]:
    """One sample like the process's median: a queue of as few steps as the fresh ones are is known by its length, and a
    row that is slow in the seen ones of that length publishes another time."""
    samples = p.evidence.samples
    wall, cpu = (
        statistics.median(getattr(s, f) / s.steps for s in samples) if samples else 0
        for f in ("wall_ns", "cpu_ns")
    )
    return (Sample(max(1, round(1000 * wall)), 1000, round(1000 * cpu)),) if samples else ()


def _elsewhere(wall_ns: float, cpu_ns: float) -> bool:
    """Whether somebody else did the work: a neighbour on the same core takes half of it and some turns of 4 ms, and a
    process that waits longer than that waits for a helper of its own."""
    return wall_ns > 3 * cpu_ns + TURNS_NS


def _places_a_step(p: Process, window: Window, fresh: Sample) -> bool:
    """Whether what placing took more is a good part of a step: nothing else of a placing depends on what the batch
    holds. Beside others 32 placings of 20 us may wait for a neighbour's turn of 4 ms, but they compute no more."""
    wall = window.fresh_place_ns - window.seen_place_ns
    cpu = window.fresh_place_cpu_ns - window.seen_place_cpu_ns
    waited = _elsewhere(window.fresh_place_ns * fresh.steps, window.fresh_place_cpu_ns * fresh.steps)
    asked = window.fresh_place_cpu_ns > 0 and shared(p.foreign) and not waited
    return wall > 0.5 * fresh.wall_ns / fresh.steps and (not asked or cpu > 0.5 * fresh.cpu_ns / fresh.steps)


def _placed(row: Row, more_ns: float = -math.inf) -> list[float]:
    """How many times as long placing a fresh batch takes as placing a seen one, by process; empty where the row does
    no work there, or no more of it than ``more_ns`` of all fresh batches."""
    told = [(p, w, w.fresh) for p, w in windows(row) if w.fresh is not None and w.seen_place_ns]
    ratios = [w.fresh_place_ns / w.seen_place_ns for _, w, _ in told]
    more = [(w.fresh_place_ns - w.seen_place_ns) * fresh.steps for _, w, fresh in told]
    works = ratios and statistics.median(ratios) > REMEMBERED and min(more) > more_ns
    return ratios if works and all(_places_a_step(*one) for one in told) else []


def _in_turns(row: Row, p: Process, window: Window) -> tuple[float, float] | None:
    """How many times as long as a step on a seen batch one on a fresh batch takes, and how many it may; None where
    nobody could tell. By the clock and by processor time, whichever says less: a neighbour's turn is no work, and what
    waits for a device uses no processor."""
    if window.fresh is None or len(window.singly) != 2:
        return None
    seen, fresh = window.singly
    few = window.fresh.steps < LEAST_IN_TURNS
    if few and (fresh.wall_ns - seen.wall_ns) * window.fresh.steps < TURNS_NS:
        return None
    wall = fresh.wall_ns / max(seen.wall_ns, 1)
    times = wall if on_gpu(row) or helped(p) else min(wall, fresh.cpu_ns / max(seen.cpu_ns, 1))
    return times, REMEMBERED_OF_FEW if few else REMEMBERED_IN_PART


def _remembered(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    if row.cell.contract.region == "train-step":
        yield from _remembered_in_part(row)
        return
    ratios = [
        max(_fresh_over_seen(w.fresh, seen, shared(p.foreign)) for seen in (w.seen, _published(p)) if seen)
        for p, w in windows(row)
        if w.fresh is not None and w.seen
    ]
    if ratios and statistics.median(ratios) > REMEMBERED:
        yield (
            f"a batch that no step has seen takes {statistics.median(ratios):.3g} times as long as one that was seen",
            {"ratios": ratios},
        )
        return
    placed = _placed(row)
    if placed:
        yield (
            f"placing a batch that was not seen before takes {statistics.median(placed):.3g} times as long as placing "
            "one that was: the step's work is done there",
            {"placed": placed},
        )


def _remembered_in_part(row: Row) -> Iterator[tuple[str, dict]]:
    found = [one for p, w in windows(row) if (one := _in_turns(row, p, w)) is not None]
    ratios = [times for times, _ in found]
    if found and statistics.median(times / most for times, most in found) > 1:
        yield (
            f"a step on a batch that no step has seen takes {statistics.median(ratios):.3g} times as long as one on a "
            "batch that was seen: what hangs on the batch alone is not computed again, or a program is made for each",
            {"ratios": ratios},
        )
        return
    placed = _placed(row, TURNS_NS)
    if placed:
        yield (
            f"placing a batch that was not seen before takes {statistics.median(placed):.3g} times as long as placing "
            "one that was: the step's work is done there, or a program is made for each batch",
            {"placed": placed},
        )


RULES = (
    Rule(
        code="remembered-results",
        alias="P40",
        family="computed",
        severity="void",
        title="Results are remembered by their batch",
        what="A step on a batch that was seen before returns, or goes on from, what was computed then.",
        why="Where no state moves, four rotating batches are four results: a dictionary answers in 0.3 us, and every "
        "value is right. Where one does, what no weight of the optimizer's is in (a frozen backbone, an encoding of "
        "the inputs) can be kept for each batch, or be a constant of a program for each.",
        evidence=("window",),
        detected="A queue of fresh batches, which are placed right before it, between two queues of as many that "
        "rotate: over three times as long as these, or as what is published, in most processes; placing a fresh batch "
        "likewise. Of a train step single steps on fresh batches in turns with steps on seen ones: over 1.5 times as "
        "long, by the clock and by processor time, in most processes (of fewer than eight twice as long); of placing "
        "100 ms more.",
        fix="Compute every step.",
        waive="Never for a rate.",
        example="@functools.lru_cache\ndef forward(batch): ...",
        cpu=True,
        check=each(_remembered),
    ),
)
