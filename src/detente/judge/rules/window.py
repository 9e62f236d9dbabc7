"""The timed window: what is published must be what was proved."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from detente.judge.parity import (
    first_difference,
    judge_tensors,
    tell_difference,
    times_reference,
)
from detente.judge.rules.hardware import FOREIGN
from detente.judge.rules.rule import Group, Hit, Row, Rule, each, train_step
from detente.records.precision import PRECISIONS
from detente.records.sample import Sample
from detente.records.session import Process
from detente.records.tensor_error import TensorError
from detente.records.window import MANY_STEPS, HandOut, Window

# The largest share of a state's change that a stretch may lie from the reference, whatever two eager runs differ by:
# one step of eight that is left out is a tenth of it. Where products are rounded to fewer digits, one step of AdamW on
# noise alone moves more than that.
CAP = {"fp64": 1e-6, "fp32": 1e-2, "tf32": 5e-2, "bf16": 1e-1}
# The same behind more than ``MANY_STEPS``: one step in twenty. A kink that one trajectory meets and nine others do not
# parts them: of 542 steps of a small ReLU net a fair JAX row was off by 2.4 %, the furthest of nine eager runs by 0.5.
MANY_CAP = {**CAP, "fp32": 5e-2}
# Drift of a whole change that says nothing, whatever the eager runs differ by.
LEAST_DRIFT = 1e-3
# Of what the eager runs lie off themselves so much is never too much: nine of them and a fair row lay off alike, 0.99
# and 1.00 % behind 1,556 steps of a small MLP, where the cap alone drew the line between them.
LIKE_ITSELF = 2.0
# Beyond the cap, what is left to say: a state that was not trained is off by all of its change.
WILD = 0.5
# Samples right after a hand-out against the others: caches are cold and threads have slept there. Beyond this, in
# every process and past the samples' own spread, they do other work.
TELL = 1.25
# The same beside others: one turn of a neighbour is a sample's half.
TELL_SHARED = 2.0
# Of the parent's clock, what samples and hand-outs must fill, and what a message and a tick of the kernel's account
# may be late by; where others use the machine, a message waits for them (of a half-second window beside 93 % of
# foreign load a sixth was missing).
FILLED = 0.95
LATE_NS = 30_000_000
LATE_BESIDE_NS = 300_000_000
# A queue of fresh batches may take so many times as long as one of batches that were seen: they come from memory, the
# others from a cache. What is remembered takes thousands of times less.
REMEMBERED = 3.0
# Turns of a neighbour, 4 ms each, that a queue of batches may wait for.
TURNS_NS = 100_000_000
# A hand-out copies, and waits for nothing where the clock was right: it takes as long behind ten samples as behind one.
PUT_OFF = 0.15
# It reads, and our own copy of what was read is timed apart: so many copies, and so long for a tree of names, may
# reading take. What is left beyond that is work, and is held against a sample.
COPIES = 20
NAMES_NS = 20_000_000
MADE_UP = 0.25
# Reading what one step of a region without state returned, for each tensor, and for the loss and the call besides: JAX
# takes 20 to 100 microseconds for each, a neighbour on the same core twice that.
READ_NS = 200_000


def windows(row: Row) -> Iterator[tuple[Process, Window]]:
    """The windows of the row's timing processes."""
    for p in row.fine:
        if p.evidence.window is not None:
            yield p, p.evidence.window


def change_share(errors: Sequence[TensorError], own: bool = False) -> float:
    """The error of a state's whole change as a share of it; ``own``: that of the eager runs. Parameters whose gradient
    is a mathematical zero are left out where their first moment says so: Adam makes steps of a whole learning rate of
    their rounding noise."""
    first = {
        e.name.partition(":")[2]: e.rms
        for e in errors
        if e.kind == "moment" and e.name.startswith("exp_avg:")
    }
    least = 1e-6 * max(first.values(), default=0.0)
    noise = {name for name, size in first.items() if size < least}
    kept = [e for e in errors if e.kind == "update" and e.name not in noise and e.rms > 0]
    whole = math.fsum(e.rms**2 * e.elements for e in kept)
    off = math.fsum((e.err_ref if own else e.err) ** 2 * e.elements for e in kept)
    return math.sqrt(off / whole) if whole else 0.0


def says_nothing(errors: Sequence[TensorError]) -> bool:
    """Whether the eager runs lie so far off themselves that the whole change tells no row from another."""
    return change_share(errors, own=True) > WILD / 2


def difference(errors: Sequence[TensorError], precision: str, steps: int) -> str:
    """What of a stretch of so many ``steps`` differs from the reference: the first tensor beyond its bound, or the
    whole change beyond the cap. Empty when nothing does."""
    found = first_difference(judge_tensors(errors, PRECISIONS[precision], steps))
    if found is not None:
        return tell_difference(found)
    caps = MANY_CAP if steps > MANY_STEPS else CAP
    share, own, cap = change_share(errors), change_share(errors, own=True), caps.get(precision, caps["fp32"])
    times = times_reference(steps)
    allowed = max(LEAST_DRIFT, min(times * own, max(cap, LIKE_ITSELF * own)))
    if own > cap:
        # A reference that drifts so far by itself tells no small error; training from none it still tells.
        allowed = min(times * own, WILD)
        if says_nothing(errors):
            return ""
    if share > allowed:
        return f"the change of the parameters is off by {share:.2g} of itself, {allowed:.2g} is allowed"
    return ""


def _not_proved(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    if row.parity is not None and row.parity.same_function == "failed":
        return  # another function leaves another state: not-the-same-function says so already
    precision = row.cell.contract.precision
    for p, window in windows(row):
        where = f"after {window.proved} steps" if window.proved else "in the window"
        told = difference(window.errors, precision, window.proved) if window.errors else ""
        if told:
            yield f"{where} of block {p.block + 1}: {told}", {"block": p.block, "steps": window.proved}
            return
        for replay in window.replays:
            told = "" if replay.reason else difference(replay.errors, precision, replay.steps)
            if told:
                behind = (
                    "on a batch that it had not seen"
                    if not window.proved
                    else f"behind sample {replay.first}"
                )
                yield (
                    f"{replay.steps} step{'s' if replay.steps > 1 else ''} {behind} in block {p.block + 1}, taken "
                    f"again by the reference: {told}",
                    {"block": p.block, "first": replay.first, "steps": replay.steps},
                )
                return


def _proved(group: Group) -> Iterator[Hit]:
    """What differs; and of a row whose replays all met a drift of eager's own, that these proved nothing."""
    for row in group.rows:
        told = [Hit(row, *one) for one in _not_proved(row, group)]
        replays = [r for _, w in windows(row) for r in w.replays if r.errors and not r.reason]
        if not told and replays and all(says_nothing(r.errors) for r in replays):
            drift = min(change_share(r.errors, own=True) for r in replays)
            told = [
                Hit(
                    row,
                    "not checked: in part: what was timed after the first steps was taken again, and eager runs of "
                    f"it differ among themselves by {drift:.2g} of the change of the parameters",
                    {"drift": drift},
                    severity="unchecked",
                )
            ]
        yield from told


def _shared(foreign: float) -> bool:
    """Whether others used the machine; what is no number is as bad as it can be."""
    return not foreign <= FOREIGN


@dataclass(frozen=True)
class Tell:
    """Samples right behind a hand-out over the others of one process, by wall time and by processor time (medians), the
    others' spread (1.48 x the median absolute deviation, relative), and what others used of the machine."""

    wall: float
    cpu: float
    spread: float
    foreign: float

    @property
    def beyond(self) -> bool:
        """Whether this is no noise. Beside others a sample may wait for a neighbour's turn, but it computes no more."""
        shared = _shared(self.foreign)
        least = max(TELL_SHARED if shared else TELL, 1 + 4 * min(self.spread, 1.0))
        return self.wall > least and (not shared or self.cpu > least)


def tells(row: Row) -> list[Tell]:
    """One for each process whose window handed out its state."""
    found = []
    for p, window in windows(row):
        samples = p.evidence.samples
        after = {h.at for h in window.hand_outs if h.at < len(samples)}
        looked = [samples[i] for i in sorted(after)]
        others = [s for i, s in enumerate(samples) if i not in after]
        if row.cell.contract.region != "train-step" or not looked or len(others) < 3:
            continue
        centre = _median(others, "wall_ns")
        spread = 1.48 * statistics.median(abs(s.wall_ns / s.steps - centre) for s in others) / centre
        cpu = _median(looked, "cpu_ns") / max(_median(others, "cpu_ns"), 1.0)
        found.append(Tell(_median(looked, "wall_ns") / centre, cpu, spread, p.foreign))
    return found


def _median(samples: Sequence[Sample], field: str) -> float:
    return statistics.median(getattr(s, field) / s.steps for s in samples)


def _tell(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    found = tells(row)
    if found and 2 * sum(t.beyond for t in found) > len(found):
        ratio = statistics.median(t.wall for t in found)
        yield (
            f"samples behind a hand-out take {ratio:.3g} times as long as the others "
            f"({len(found)} process{'es' if len(found) > 1 else ''}): they do other work where they are looked at",
            {"ratios": [t.wall for t in found]},
        )


def _covered(p: Process, window: Window) -> tuple[int, int]:
    parts = [*p.evidence.samples, *window.hand_outs, *window.seen, *([window.fresh] if window.fresh else [])]
    return (
        sum(s.wall_ns for s in parts) + window.warm_ns,
        sum(s.cpu_ns for s in parts) + window.warm_cpu_ns,
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
    # A neighbour lengthens the wall alone, and so does a sleep; work takes both.
    over = sorted(
        min(h.wall_ns, h.cpu_ns or h.wall_ns) - COPIES * h.copy_ns - _reading(h, stateless) for h in timed
    )
    # Every result that is read must be computed; of states those alone that end a stretch, three of seven or one of
    # three. One may be a page of memory's: where there are five, two must take so long.
    at = len(over) // 2 if stateless else len(over) - (2 if len(over) >= 5 else 1)
    whole = statistics.median(s.wall_ns / (s.steps if stateless else 1) for s in p.evidence.samples)
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


def _fresh_over_seen(fresh: Sample, seen: Sequence[Sample], shared: bool = False) -> float:
    """By the clock or by processor time, whichever says more: one turn of a neighbour in one of the queues of seen
    batches once hid a dictionary that answered 360 times as fast. Beside others (``shared``) by processor time alone: a
    turn in the queue of fresh ones is no work of theirs."""
    wall = (fresh.wall_ns / fresh.steps) / max(s.wall_ns / s.steps for s in seen)
    if not fresh.cpu_ns or not all(s.cpu_ns for s in seen):
        return wall
    cpu = (fresh.cpu_ns / fresh.steps) / max(s.cpu_ns / s.steps for s in seen)
    return cpu if shared and not _elsewhere(fresh.wall_ns, fresh.cpu_ns) else max(wall, cpu)


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
    asked = window.fresh_place_cpu_ns > 0 and _shared(p.foreign) and not waited
    return wall > 0.5 * fresh.wall_ns / fresh.steps and (not asked or cpu > 0.5 * fresh.cpu_ns / fresh.steps)


def _remembered(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    ratios = [
        _fresh_over_seen(w.fresh, w.seen, _shared(p.foreign))
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
        code="window-not-proved",
        alias="P37",
        family="clock",
        severity="void",
        title="What is timed is not what was proved",
        what="Steps of the timed window leave another state, or return other values, than the reference does.",
        why="A row that dropped its backward pass from the seventh step on was proved over three steps and published "
        "as 5.45 times faster; updates every second step, half a batch and results remembered passed likewise.",
        evidence=("window.errors",),
        detected="The state after the window's first 8 to 35 steps against an fp64 reference that `prepare` advanced "
        "as far (at most four times the larger error of two eager runs, the rows of each batch in another order, and "
        "a hundredth of the whole change). In one random block of each row a stretch at a random place (of a small "
        "model three), taken again by the reference from the state that was handed out before it, moments included. "
        "Regions without state: what steps at random places returned, and one on a batch that no step had seen.",
        fix="Run the same step throughout; look for a schedule, a cache or a counter that changes it.",
        waive="Never.",
        example="if self.calls > 6: return cached_loss",
        cpu=True,
        check=_proved,
        partly=("replay",),
    ),
    Rule(
        code="handout-is-a-tell",
        alias="P38",
        family="clock",
        severity="void",
        title="Honest only where it is looked at",
        what="Samples right behind a place where the state was handed out are slower than the others.",
        why="Whatever a stack can notice, it can behave for: the probes of an earlier version reloaded the weights "
        "first, and that reset every counter that a cheating row kept.",
        evidence=("window", "samples"),
        detected="Samples behind a hand-out against the others of the same process: over 1.25 times as long, and "
        "beyond four times the others' own spread, in most processes; on a shared machine twice as long, by processor "
        "time too.",
        fix="Do the same work in every step.",
        waive="Never.",
        example="def state(self): self.honest_steps = 4; return super().state()",
        cpu=True,
        check=each(_tell),
        applies=lambda row: row.cell.contract.region == "train-step",
    ),
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
        "time that the kernel charges to the process. Handing the state out may not take longer the "
        "more was timed before it, nor 20 times as long as a copy of it (and 0.2 ms for each tensor, 20 ms at "
        "most) and a quarter of a sample besides; where there is no state, the results of one step no longer than 20 "
        "copies (and 0.2 ms for each tensor) and a quarter of a step.",
        fix="Leave the clock alone; do the step's work in the step.",
        waive="Never.",
        example="time.perf_counter_ns = lambda: real() // 2",
        cpu=True,
        check=each(_covering),
    ),
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
        detected="A queue of fresh batches between two queues of as many that rotate: over three times as long in "
        "most processes; placing a fresh batch likewise.",
        fix="Compute every step.",
        waive="Never for a rate.",
        example="@functools.lru_cache\ndef forward(batch): ...",
        cpu=True,
        check=each(_remembered),
        applies=lambda row: row.cell.contract.region != "train-step",
    ),
)
