"""The steady window: its samples, and the places in it where results are handed out to be proved.

What is proved before and after a clock can be cheated in between. So the window's first steps are compared with the
reference that ``prepare`` advanced as far, and later stretches are taken again by the reference from the state that was
handed out before them. No place is known beforehand, every process hands out, and what follows is timed and published
like everything else: a stack that is honest only where it is looked at publishes that it is slower there.

Where a region has no state to hand out (``forward``, ``gradient``), what steps return is handed out instead, of the
rotating batches and of fresh ones that no step has seen: a result that is remembered by its batch is as fast as ever
for the first and cannot be for the second. Where a state moves, a part of a step may be remembered, of a backbone that
is frozen or of what hangs on the batch alone: steps on fresh batches are timed there in turns with steps on seen ones.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from detente.records.job import Sampling
from detente.records.sample import Sample
from detente.records.window import HandOut
from detente.stacks.protocol import Running
from detente.worker.buffers import Buffers, Part, numbers, parts_of
from detente.worker.clock import ROOM, readings, sample, without_collector
from detente.worker.placing import Batch, Placing, place_fresh

# Samples behind the first steps, at least: room for a stretch at a place that is not known.
LEAST_BEHIND = 3
# Steps of a stretch that is taken again, at most, where a sample is shorter: fp64 takes several times as long.
MOST_REPLAYED = 32
# Steps that are long beside the window: a second stretch would cost more than it shows.
SLOW_S = 0.25
# A sample may become so many times as long as the one before it: one reading is no ground for more.
LONGEST = 64
# Fresh batches, at most: each is placed, and seen once.
FRESH = 32
# Seconds of steps on fresh batches where a state moves.
FRESH_S = 0.25


@dataclass(frozen=True)
class Stretch:
    """What was handed out around ``steps`` steps behind ``first`` samples: the state before and after them, the numbers
    of the batches between, and the ``loss`` of one of these steps, number ``at`` of them."""

    first: int
    steps: int
    batches: list[int]
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]
    at: int
    loss: float


@dataclass(frozen=True)
class Returned:
    """What one step of a region without state returned, ``loss`` among it. ``number``: of its batch."""

    number: int
    fresh: bool
    outputs: Mapping[str, np.ndarray]


@dataclass
class Taken:
    """A window that is over.

    warm       the first steps, added up; no samples
    state      what the first steps left, and ``loss``: that of the last of them
    given      parts of every state that was handed out, and of the one that room was made for
    stretches  one of them is taken again; which is drawn behind the window
    outputs    of regions without state
    fresh      a queue of fresh batches, and ``seen``: queues of as many that rotate, before and after it;
               ``placing``: what placing the fresh ones took. Where a state moves, both are single steps in turns, and
               ``singly`` the median of either
    newest     the handle of one of the last steps
    collector  whether Python's collector was on at the end: the harness turned it off, a stack may turn it on again
    """

    samples: list[Sample] = field(default_factory=list)
    hand_outs: list[HandOut] = field(default_factory=list)
    warm: Sample | None = None
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    outputs: list[Returned] = field(default_factory=list)
    fresh: Sample | None = None
    seen: list[Sample] = field(default_factory=list)
    loss: float = math.nan
    given: set[Part] = field(default_factory=set)
    placing: Placing = Placing()
    singly: tuple[Sample, Sample] | None = None
    newest: Any = None
    collector: bool = False


# Places are drawn from the system: a seed in the job file would be there for a stack to read. Made here, before a
# user's file is loaded.
_DRAW = random.SystemRandom()


class Rotation:
    """Batches by number, around and around. ``turn`` goes on at another one: a path that is known beforehand could be
    trained before the window and only be told in it. A loader's order is its own."""

    def __init__(self, batches: Sequence[Any], taken: int = 0, read: Callable[[], Any] | None = None) -> None:
        self._batches, self._read = batches, read
        self.count, self.next = len(batches), taken % len(batches)

    def __call__(self) -> Any:
        number, self.next = self.next, (self.next + 1) % self.count
        return self._batches[number] if self._read is None else self._read()

    @property
    def is_read(self) -> bool:
        """Whether somebody else says which batch is next."""
        return self._read is not None

    def turn(self) -> None:
        """Go on at a batch that is drawn now."""
        if self._read is None:
            self.next = _DRAW.randrange(self.count)

    def numbers(self, steps: int) -> list[int]:
        """The numbers of the next ``steps`` batches."""
        return [(self.next + i) % self.count for i in range(steps)]


def behind(each_s: float, sampling: Sampling) -> int:
    """Samples to take behind the first steps: as many as the sampling rule wants and its seconds hold, no fewer than it
    takes for a median and for a stretch at an unknown place."""
    fits = int(sampling.seconds / max(each_s, 1e-9))
    return max(LEAST_BEHIND, sampling.least, min(sampling.samples, fits))


def is_slow(each_s: float) -> bool:
    """Whether samples of so many seconds have time for one stretch, and not for three."""
    return each_s >= SLOW_S


def states(each_s: float) -> int:
    """States that a window of such samples holds at a time: the first, and one on each side of every stretch."""
    return 3 if is_slow(each_s) else 7


def lay_stretches(draw: random.Random, samples: int, queued: int, each_s: float) -> list[tuple[int, int]]:
    """(first, samples) of each stretch among ``samples`` that follow, in order and apart."""
    found, start, wanted = [], 0, 1 if is_slow(each_s) else 3
    for i in range(wanted):
        end = (i + 1) * samples // wanted
        # Of long steps one: the reference takes each several times over.
        longest = max(1, min(1 if is_slow(each_s) else 2, MOST_REPLAYED // queued, end - start))
        length = draw.randint(1, longest)
        first = draw.randint(start, end - length)
        found.append((first, length))
        start = first + length
    return found


def draw_stretch(taken: Taken) -> Stretch | None:
    """The stretch that is taken again; None where none was held."""
    return _DRAW.choice(taken.stretches) if taken.stretches else None


def fresh_steps(step_s: float) -> int:
    """Fresh batches where a state moves, of steps of so many seconds."""
    return max(1, min(FRESH, int(FRESH_S / max(step_s, 1e-9))))


def fresh_seed() -> int:
    """A seed for batches that nobody has seen."""
    return _DRAW.getrandbits(48)


class Window:
    """Takes the window of one process. ``step_s`` is a first guess of a step, ``queued`` the steps of a sample,
    ``memory`` the file for the states that are handed out (``Buffers``).

    ``edges`` are called with nothing between them and the first and the last reading: the parent, which hears of both,
    holds the sum of samples and hand-outs against its own clock.
    """

    def __init__(
        self,
        running: Running,
        feed: Rotation,
        queued: int,
        step_s: float,
        sampling: Sampling,
        edges: tuple[Callable[[], None], Callable[[], None]],
        memory: int = -1,
    ) -> None:
        self.running, self.feed, self.queued, self.sampling = running, feed, queued, sampling
        self.each_s = step_s * queued
        self.begin, self.end = edges
        self.memory = memory
        self.taken = Taken()

    def make_room(self, hold: bool) -> None:
        """Ask for the state a first time, and make room for as many as will be handed out. Before compilations are
        counted: what a first time makes (a program that slices or copies) is none of the window's. ``hold``: memory
        holds the states around the stretches; else they are handed out and let go."""
        self._hold = hold
        self._buffers = Buffers(self.running.state(), states(self.each_s) if hold else 2, self.memory)
        self.taken.given |= self._buffers.parts
        # How long reading a state may take is a matter of its size, and not of what a stack makes of the copying.
        self._copy_ns = self._buffers.copy_ns()

    def of_state(self, rest: int, fresh: Sequence[Batch] = (), seen: Sequence[Batch] = ()) -> Taken:
        """A window over a state that moves, behind ``make_room``: ``rest`` steps until it is handed out the first time,
        stretches behind, and steps on ``fresh`` batches behind one of these (no reference goes that way)."""
        taken, queued, hold, first = self.taken, self.queued, self._hold, Sample(0, 0)
        with without_collector():
            self.begin()
            while rest:
                found, self._newest = sample(self.running, self.feed, min(queued, rest))
                first = Sample(
                    first.wall_ns + found.wall_ns, first.steps + found.steps, first.cpu_ns + found.cpu_ns
                )
                rest -= found.steps
            taken.warm, taken.state = first, self._hand_out(keep=True)
            taken.loss = self._loss
            each = max(first.wall_ns / first.steps * queued / 1e9, self.each_s if queued > 1 else 0.0)
            count = behind(each, self.sampling)
            at = 0
            laid = lay_stretches(_DRAW, count, queued, each)
            when = _DRAW.randrange(len(laid)) if fresh else -1
            for i, (start, length) in enumerate(laid):
                self._samples(start - at)
                before = self._hand_out(hold) if start else taken.state
                begun = len(taken.samples)
                batches, looked = self._stretch(length)
                after = self._hand_out(hold)
                if hold:
                    taken.stretches.append(
                        Stretch(begun, len(batches), batches, before, after, looked, self._loss)
                    )
                at = start + length
                if i == when:
                    self._in_turns(fresh, seen)
            self._samples(count - at)
            self._over()
        return taken

    def of_outputs(self, fresh: Sequence[Batch], seen: Sequence[Batch] = ()) -> Taken:
        """A window over a region without state: what steps at random places returned, and once a queue of ``fresh``
        batches between queues of as many that were ``seen`` before. They are placed there: what lies on the device
        earlier can be computed in the first step, and looked up ever after."""
        taken = self.taken
        count = behind(self.each_s, self.sampling)
        looks = set(_DRAW.sample(range(count), min(3, count)))
        when = _DRAW.randrange(count) if fresh else -1
        with without_collector():
            self.begin()
            for i in range(count):
                if i == when:
                    self._fresh(fresh, seen)
                keep = _DRAW.randrange(self.queued)
                number = self._sample(keep)[keep]
                if i in looks:
                    self._returned(number, fresh=False)
            self._over()
        return taken

    def _over(self) -> None:
        self.end()
        self.taken.collector, self.taken.newest = gc.isenabled(), self._newest

    def _fresh(self, fresh: Sequence[Batch], seen: Sequence[Batch]) -> None:
        taken, keep = self.taken, _DRAW.randrange(len(fresh))
        taken.seen.append(sample(self.running, self.feed, len(fresh))[0])
        # Right before their own queue: in one of seen batches they could be computed, too.
        placed, taken.placing = place_fresh(self.running, seen, fresh)
        batches = iter(placed)
        taken.fresh, self._newest = sample(self.running, lambda: next(batches), len(fresh), keep)
        self._returned(keep, fresh=True)
        taken.seen.append(sample(self.running, self.feed, len(fresh))[0])

    def _in_turns(self, fresh: Sequence[Batch], seen: Sequence[Batch]) -> None:
        """Single steps on a seen batch and on a fresh one, in turns: a neighbour's turn is in one of them, and the
        median of each is of the work."""
        taken = self.taken
        placed, taken.placing = place_fresh(self.running, seen, fresh)
        known, new = [], []
        for batch in placed:
            known.append(sample(self.running, self.feed, 1)[0])
            found, self._newest = sample(self.running, lambda batch=batch: batch, 1)
            new.append(found)
        taken.seen.append(_together(known))
        taken.fresh = _together(new)
        taken.singly = _median(known), _median(new)

    def _samples(self, count: int) -> list[int]:
        """Take so many; the numbers of their batches."""
        return [number for _ in range(count) for number in self._sample()]

    def _stretch(self, count: int) -> tuple[list[int], int]:
        """The same, and which of these steps it is whose loss will be read: a step that computes none is not the
        contract's, and any may be asked."""
        looked, numbers, at, handle = _DRAW.randrange(count), [], 0, None
        for i in range(count):
            keep = _DRAW.randrange(self.queued) if i == looked else -1
            took = self._sample(keep)
            if i == looked:
                at, handle = len(numbers) + keep, self._newest
            numbers += took
        self._newest = handle
        return numbers, at

    def _sample(self, keep: int = -1) -> list[int]:
        self.feed.turn()
        numbers = self.feed.numbers(self.queued)
        found, self._newest = sample(self.running, self.feed, self.queued, keep)
        self.taken.samples.append(found)
        if found.wall_ns < self.sampling.block_s * 1e9 / 2:
            self._lengthen(found)
        return numbers

    def _lengthen(self, found: Sample) -> None:
        """Queue more steps from now on: a sample was not half as long as planned. How long a step is was told by three
        steps and a calibration, and so by the stack: one that slept in these had a window of 1.2 ms, in which every
        allowance of milliseconds was longer than the work. A neighbour does the same to a fair one. As there, a loss
        is read: of a stack that does not wait it says how long the work was."""
        wall, cpu = readings()
        self.running.loss(self._newest)
        wall_now, cpu_now = readings()
        self.taken.hand_outs.append(HandOut(len(self.taken.samples), wall_now - wall, cpu_now - cpu))
        whole = found.wall_ns + wall_now - wall
        wanted = math.ceil(ROOM * self.sampling.block_s * 1e9 * found.steps / max(whole, 1))
        self.queued = max(self.queued, min(wanted, LONGEST * found.steps))

    def _hand_out(self, keep: bool) -> dict[str, np.ndarray]:
        """The state, and the loss of a step before it, and what asking for them took. It is a copy of ours, made
        inside the stamp: arrays that the stack still holds could be filled in later, and views of what the next step
        overwrites will be. One that is not to be kept is written over by the next."""
        wall, cpu = readings()
        self._loss = float(self.running.loss(self._newest))
        given = self.running.state()
        state = self._buffers.copy(given)
        del given
        self.taken.given |= parts_of(state)
        self._stamp(wall, cpu, self._copy_ns, len(state))
        if not keep:
            self._buffers.give_back(state)
        return state

    def _returned(self, number: int, *, fresh: bool) -> None:
        """What the newest step returned. ``number``: of its batch, among the fresh ones or the rotating ones."""
        wall, cpu = readings()
        given = {**self.running.outputs(self._newest), "loss": self.running.loss(self._newest)}
        outputs = {str(name): np.array(numbers(array)) for name, array in given.items()}
        del given
        # Of ours to ours: what the stack gave may be computed, or slow on purpose, while it is copied.
        between, _ = readings()
        for array in outputs.values():
            array.copy()
        over, _ = readings()
        self._stamp(wall, cpu, over - between, len(outputs))
        self.taken.outputs.append(Returned(number, fresh, outputs))

    def _stamp(self, wall: int, cpu: int, copy: int, tensors: int) -> None:
        wall_now, cpu_now = readings()
        self.taken.hand_outs.append(
            HandOut(len(self.taken.samples), wall_now - wall, cpu_now - cpu, copy, tensors)
        )


def _together(steps: Sequence[Sample]) -> Sample:
    return Sample(sum(s.wall_ns for s in steps), len(steps), sum(s.cpu_ns for s in steps))


def _median(steps: Sequence[Sample]) -> Sample:
    """Of single steps, each number by itself."""
    return Sample(int(median(s.wall_ns for s in steps)), 1, int(median(s.cpu_ns for s in steps)))
