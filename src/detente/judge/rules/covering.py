"""The time of the window: samples and hand-outs must add up to it, and a hand-out may do no work of theirs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator

from detente.judge.rules.rule import Group, Row, Rule, each, train_step
from detente.judge.rules.window import helped, shared, windows
from detente.records.session import Process
from detente.records.window import HandOut, Window

# Of the parent's clock, what samples and hand-outs must fill, and what a message and a tick of the kernel's account
# may be late by; where others use the machine, a message waits for them (of a half-second window beside 93 % of
# foreign load a sixth was missing).
FILLED = 0.95
LATE_NS = 30_000_000
LATE_BESIDE_NS = 300_000_000
# A hand-out copies, and waits for nothing where the clock was right: it takes as long behind ten samples as behind one.
PUT_OFF = 0.15
# It reads: so many copies of ours of as much, and so long for a tree of names, may reading take. What is left beyond
# that is work, and is held against a sample.
COPIES = 20
NAMES_NS = 20_000_000
MADE_UP = 0.25
# Reading what one step of a region without state returned, for each tensor, and for the loss and the call besides: JAX
# takes 20 to 100 microseconds for each, a neighbour on the same core twice that.
READ_NS = 200_000


def _covered(p: Process, window: Window) -> tuple[int, int]:
    parts = [*p.evidence.samples, *window.hand_outs, *window.seen, *([window.fresh] if window.fresh else [])]
    return (
        sum(s.wall_ns for s in parts) + window.warm_ns + window.placing_ns,
        sum(s.cpu_ns for s in parts) + window.warm_cpu_ns + window.placing_cpu_ns,
    )


def _not_covering(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for p, window in windows(row):
        if not window.parent_wall_ns:
            continue
        wall, cpu = _covered(p, window)
        # An imported session may say anything of its load; unknown is as bad as it can be.
        beside = LATE_BESIDE_NS * (min(max(p.foreign, 0.0), 1.0) if math.isfinite(p.foreign) else 1.0)
        for what, mine, theirs, late in (
            ("clock", wall, window.parent_wall_ns, LATE_NS + beside),
            # While a message waits, all threads may go on.
            ("account of processor time", cpu, window.parent_cpu_ns, 2 * (LATE_NS + beside)),
        ):
            if mine < FILLED * theirs - late or FILLED * mine > theirs + late:
                yield (
                    f"samples and hand-outs add up to {mine / 1e9:.3g} s, the parent's {what} says "
                    f"{theirs / 1e9:.3g} s (block {p.block + 1})",
                    {"inside_s": mine / 1e9, "parent_s": theirs / 1e9, "block": p.block},
                )
                return


def put_off(p: Process, window: Window) -> float | None:
    """The share of the published time by which handing the state out takes longer the more was published since it was
    handed out before: the median slope between two of a process's hand-outs (Theil and Sen). What was put off lies on
    every one of these lines; a hand-out that met fresh pages of memory lies on its own (a row's took 1.1 and 0.25 s by
    turns, and a line through all of them was steep). About nothing where every sample did its own work. None where
    there are too few hand-outs, or they differ by less than a message may be late."""
    seconds = [s.wall_ns for s in p.evidence.samples]
    points, before = [], 0
    for h in window.hand_outs:
        warm = window.warm_ns if before == 0 and not points else 0
        points.append((sum(seconds[before : h.at]) + warm, h.wall_ns))
        before = h.at
    costs = [y for _, y in points]
    slopes = [
        (y - other_y) / (x - other_x)
        for (x, y), (other_x, other_y) in itertools.combinations(points, 2)
        if x != other_x
    ]
    if not slopes or max(costs) - min(costs) < 2 * LATE_NS:
        return None
    return statistics.median(slopes)


def _still_at_work(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    found = [put_off(p, w) for p, w in windows(row) if w.proved or not train_step(row)]
    shares = [s for s in found if s is not None]
    # Of one process a slow page of memory may look like a fifth.
    most = PUT_OFF if len(shares) > 2 else 2 * PUT_OFF
    if shares and 2 * sum(s > most for s in shares) > len(found):
        yield (
            f"handing {_what(row)} out takes longer the more was timed before it, by "
            f"{statistics.median(shares):.3g} of that time: work of the samples was still to do",
            {"shares": shares},
        )


def made_up(p: Process, window: Window, stateless: bool = False) -> float | None:
    """What handing the state out took beyond reading it, as a share of a sample; where there is no state
    (``stateless``), what handing out one step's results did, as a share of a step. None where nobody timed the copy."""
    timed = [h for h in window.hand_outs if h.copy_ns]
    if not timed or not p.evidence.samples:
        return None
    # A neighbour lengthens the wall alone, and so does a sleep; work takes both, but that of a helper's.
    alone = not helped(p)
    over = sorted(
        min(h.wall_ns, (alone and h.cpu_ns) or h.wall_ns) - COPIES * h.copy_ns - _reading(h, stateless)
        for h in timed
    )
    # Every result that is read must be computed; of states those alone that end a stretch, three of seven or one of
    # three. One may be a page of memory's: where there are five, two must take so long.
    at = len(over) // 2 if stateless else len(over) - (2 if len(over) >= 5 else 1)
    # Beside others what a hand-out computed is held against what a sample computes: its wall is theirs, too.
    busy = shared(p.foreign)
    whole = statistics.median(
        min(s.wall_ns, (busy and s.cpu_ns) or s.wall_ns) / (s.steps if stateless else 1)
        for s in p.evidence.samples
    )
    return over[at] / whole


def _reading(hand_out: HandOut, stateless: bool) -> int:
    """What reading may take beside the bytes. Nobody counted tensors before 28 November."""
    each = READ_NS * (hand_out.tensors + 1) if hand_out.tensors else NAMES_NS
    return each if stateless else min(each, NAMES_NS)


def _made_up(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    stateless = not train_step(row)
    found = [
        share
        for p, w in windows(row)
        if (w.proved or stateless) and (share := made_up(p, w, stateless)) is not None
    ]
    if found and 2 * sum(share > MADE_UP for share in found) > len(found):
        yield (
            f"handing {_what(row)} out takes {statistics.median(found):.3g} of a {'step' if stateless else 'sample'} "
            f"longer than reading it can: work of the {'steps' if stateless else 'samples'} is done there",
            {"shares": found},
        )


def _what(row: Row) -> str:
    return "the state" if train_step(row) else "a result"


def _covering(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    yield from _not_covering(row, group)
    yield from _still_at_work(row, group)
    yield from _made_up(row, group)


RULES = (
    Rule(
        code="clock-not-covering",
        alias="P39",
        family="clock",
        severity="void",
        title="The samples do not add up to the time that passed",
        what="Between the samples, or behind a clock that runs slow, more time passed than was published.",
        why="A clock patched to half its speed halves every row; 10 ms of work moved into a call between two "
        "readings were published as 2 us.",
        evidence=("window", "samples", "parent"),
        detected="Samples and hand-outs must fill 95 % of the window by the parent's own clock, and of the processor "
        "time that the kernel charges to the process. Handing the state out may not take longer the more was timed "
        "before it, nor 20 times as long as a copy of as much whose both ends are ours (and 0.2 ms for each tensor, 20 "
        "ms at most) and a quarter of a sample besides; where there is no state, the results of one step no longer "
        "than 20 such copies (and 0.2 ms for each tensor) and a quarter of a step.",
        fix="Leave the clock alone; do the step's work in the step.",
        waive="Never.",
        example="time.perf_counter_ns = lambda: real() // 2",
        cpu=True,
        check=each(_covering),
    ),
)
