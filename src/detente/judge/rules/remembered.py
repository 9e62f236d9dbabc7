"""Where no state moves, a result may be remembered by its batch: fresh ones beside seen ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from detente.judge.rules.rule import Group, Row, Rule, each
from detente.judge.rules.window import shared, windows
from detente.records.sample import Sample
from detente.records.session import Process
from detente.records.window import Window

# A queue of fresh batches may take so many times as long as one of batches that were seen: they come from memory, the
# others from a cache. What is remembered takes thousands of times less.
REMEMBERED = 3.0
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


def _remembered(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
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
    told = [(p, w, w.fresh) for p, w in windows(row) if w.fresh is not None and w.seen_place_ns]
    placed = [w.fresh_place_ns / w.seen_place_ns for _, w, _ in told]
    if placed and statistics.median(placed) > REMEMBERED and all(_places_a_step(*one) for one in told):
        yield (
            f"placing a batch that was not seen before takes {statistics.median(placed):.3g} times as long as placing "
            "one that was: the step's work is done there",
            {"placed": placed},
        )


RULES = (
    Rule(
        code="remembered-results",
        alias="P40",
        family="computed",
        severity="void",
        title="Results are remembered by their batch",
        what="A step on a batch that was seen before returns what was computed then.",
        why="Where no state moves, four rotating batches are four results: a dictionary answers in 0.3 us, and every "
        "value is right.",
        evidence=("window",),
        detected="A queue of fresh batches, which are placed right before it, between two queues of as many that "
        "rotate: over three times as long as these, or as what is published, in most processes; placing a fresh batch "
        "likewise.",
        fix="Compute every step.",
        waive="Never for a rate.",
        example="@functools.lru_cache\ndef forward(batch): ...",
        cpu=True,
        check=each(_remembered),
        applies=lambda row: row.cell.contract.region != "train-step",
    ),
)
