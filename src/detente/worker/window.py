"""The steady window: its samples, and the places in it where results are handed out to be proved.

What is proved before and after a clock can be cheated in between. So the window's first steps are compared with the
reference that ``prepare`` advanced as far, and later stretches are taken again by the reference from the state that was
handed out before them. No place is known beforehand, every process hands out, and what follows is timed and published
like everything else: a stack that is honest only where it is looked at publishes that it is slower there.

Where a region has no state to hand out (``forward``, ``gradient``), what steps return is handed out instead, of the
rotating batches and of fresh ones that no step has seen: a result that is remembered by its batch is as fast as ever
for the first and cannot be for the second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detente.records.job import Sampling
from detente.records.sample import Sample
from detente.records.window import HandOut
from detente.stacks.protocol import Running
from detente.worker.clock import readings, sample, without_collector

# Samples behind the first steps, at least: room for a stretch at a place that is not known.
LEAST_BEHIND = 3
# Steps of a stretch that is taken again, at most, where a sample is shorter: fp64 takes several times as long.
MOST_REPLAYED = 32
# Steps that are long beside the window: a second stretch would cost more than it shows.
SLOW_S = 0.25
# Fresh batches of a region without state, at most: each is placed, and seen once.
FRESH = 32


@dataclass(frozen=True)
class Stretch:
    """What was handed out around ``steps`` steps behind ``first`` samples: the state before and after them, and the
    numbers of the batches between."""

    first: int
    steps: int
    batches: list[int]
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Returned:
    """What one step of a region without state returned, ``loss`` among it. ``number``: of its batch."""

    number: int
    fresh: bool
    outputs: Mapping[str, np.ndarray]


@dataclass
class Taken:
    """A window that is over.

    warm       the rest of the first steps, where a sample queues more; no sample
    state      what the first steps left
    stretch    the one that is taken again, where it was to be kept
    outputs    of regions without state
    fresh      a queue of fresh batches, and ``seen``: queues of as many that rotate, before and after it
    """

    samples: list[Sample] = field(default_factory=list)
    hand_outs: list[HandOut] = field(default_factory=list)
    warm: Sample | None = None
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    stretch: Stretch | None = None
    outputs: list[Returned] = field(default_factory=list)
    fresh: Sample | None = None
    seen: list[Sample] = field(default_factory=list)


class Rotation:
    """Batches by number, around and around; counts what it gave. Reading a loader is its ``give``."""

    def __init__(self, give: Callable[[], Any], count: int, taken: int = 0) -> None:
        self._give, self.count, self.taken = give, count, taken

    def __call__(self) -> Any:
        self.taken += 1
        return self._give()

    def numbers(self, steps: int) -> list[int]:
        """The numbers of the next ``steps`` batches."""
        return [(self.taken + i) % self.count for i in range(steps)]


def behind(samples: int, each_s: float, spent_s: float, sampling: Sampling) -> int:
    """Samples to take behind the first steps: as many as the sampling rule wants and its seconds hold, no fewer than it
    takes for a median and for a stretch at an unknown place."""
    fits = int((sampling.seconds - spent_s) / max(each_s, 1e-9))
    least = max(LEAST_BEHIND, sampling.least - samples)
    return max(least, min(sampling.samples - samples, fits))


def lay_stretches(places: int, samples: int, queued: int, each_s: float) -> list[tuple[int, int]]:
    """(first, samples) of each stretch among ``samples`` that follow, in order and apart, drawn from ``places``."""
    rng = random.Random(places)
    found, start, wanted = [], 0, 1 if each_s >= SLOW_S else 3
    for i in range(wanted):
        end = (i + 1) * samples // wanted
        longest = max(1, min(2, MOST_REPLAYED // queued, end - start))
        length = rng.randint(1, longest)
        first = rng.randint(start, end - length)
        if found and found[-1][0] + found[-1][1] > first:
            continue
        found.append((first, length))
        start = first + length
        if start >= samples:
            break
    return found


class Window:
    """Takes the window of one process. ``step_s`` is a first guess of a step, ``queued`` the steps of a sample.

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
    ) -> None:
        self.running, self.feed, self.queued, self.sampling = running, feed, queued, sampling
        self.each_s = step_s * queued
        self.begin, self.end = edges
        self.taken = Taken()

    def of_state(self, rest: int, places: int, keep: bool) -> Taken:
        """A window over a state that moves: ``rest`` steps until it is handed out the first time, stretches behind.
        ``keep``: hold one stretch's states in memory."""
        taken, queued = self.taken, self.queued
        with without_collector():
            self.begin()
            while rest >= queued:
                self._sample()
                rest -= queued
            if rest:
                taken.warm, _ = sample(self.running, self.feed, rest)
            taken.state = self._hand_out()
            spent = sum(s.wall_ns for s in taken.samples) / 1e9
            each = spent / len(taken.samples) if taken.samples else self.each_s
            count = behind(len(taken.samples), each, spent, self.sampling)
            stretches = lay_stretches(places, count, queued, each)
            kept = random.Random(places + 1).randrange(len(stretches)) if keep else -1
            at, offset = 0, len(taken.samples)
            for number, (first, length) in enumerate(stretches):
                self._samples(first - at)
                steps = length * queued
                before = self._hand_out() if first else taken.state
                batches = self.feed.numbers(steps)
                self._samples(length)
                after = self._hand_out()
                if number == kept:
                    taken.stretch = Stretch(offset + first, steps, batches, before, after)
                at = first + length
            self._samples(count - at)
            self.end()
        return taken

    def of_outputs(self, places: int, fresh: list[Any]) -> Taken:
        """A window over a region without state: what steps at random places returned, and once a queue of ``fresh``
        batches between queues of as many that were seen before."""
        rng, taken = random.Random(places), self.taken
        count = behind(0, self.each_s, 0.0, self.sampling)
        looks = set(rng.sample(range(count), min(3, count)))
        when = rng.randrange(count)
        with without_collector():
            self.begin()
            for i in range(count):
                if i == when:
                    self._fresh(fresh)
                self._sample()
                if i in looks:
                    self._returned((self.feed.taken - 1) % self.feed.count, fresh=False)
            self.end()
        return taken

    def _fresh(self, fresh: list[Any]) -> None:
        taken = self.taken
        taken.seen.append(sample(self.running, self.feed, len(fresh))[0])
        batches = iter(fresh)
        taken.fresh, self._newest = sample(self.running, lambda: next(batches), len(fresh))
        self._returned(len(fresh) - 1, fresh=True)
        taken.seen.append(sample(self.running, self.feed, len(fresh))[0])

    def _samples(self, count: int) -> None:
        for _ in range(count):
            self._sample()

    def _sample(self) -> None:
        found, self._newest = sample(self.running, self.feed, self.queued)
        self.taken.samples.append(found)

    def _hand_out(self) -> Mapping[str, np.ndarray]:
        """The state, and what asking for it took."""
        wall, cpu = readings()
        state = self.running.state()
        self._stamp(wall, cpu)
        return state

    def _returned(self, number: int, *, fresh: bool) -> None:
        """What the newest step returned. ``number``: of its batch, among the fresh ones or the rotating ones."""
        wall, cpu = readings()
        outputs = {**self.running.outputs(self._newest), "loss": np.array(self.running.loss(self._newest))}
        self._stamp(wall, cpu)
        self.taken.outputs.append(Returned(number, fresh, outputs))

    def _stamp(self, wall: int, cpu: int) -> None:
        wall_now, cpu_now = readings()
        self.taken.hand_outs.append(HandOut(len(self.taken.samples), wall_now - wall, cpu_now - cpu))
