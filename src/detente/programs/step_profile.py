"""Where the seconds of a step go: by kind of work, by direction and by part of the model.

A step's time is cut into **slices**, a kernel or an operator each, and what is left. Where several threads run kernels
at once an instant is shared out among them, so that slices and rest add up to the step; the rest is **dispatch**: the
runtime between two kernels, and of PyTorch also Python, autograd and the dispatcher. **Idle** is measured apart, by the
processor time of the whole process: threads that wait for others while a step runs.

How it can fail: a profiler costs something itself. ``step_s`` is without it, and slices are of ``watched_s``; where the
two lie far apart the small kernels look larger than they are. A runtime whose threads spin while they wait is not idle
by this count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from detente.programs.count import read_program
from detente.programs.fold import starred
from detente.programs.kinds import KINDS, Kind, kind_of_operator, kinds_of
from detente.programs.module import ProgramError
from detente.programs.operators import seconds_of
from detente.programs.parts import Kernel, Part, Site, kernels, sites
from detente.programs.scope import Direction
from detente.programs.xplane import read_xplane

Work = Kind | Literal["optimizer"]
WORKS: tuple[Work, ...] = (*KINDS[:-1], "optimizer", "other")
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


@dataclass(frozen=True)
class Slice:
    """``seconds`` of a step in which one kernel or operator ran. ``known``: whether its part is known by name or by
    dataflow; a guess is none."""

    part: Part
    work: Work
    seconds: float
    known: bool = True


@dataclass(frozen=True)
class StepProfile:
    """A step, cut up.

    step_s      seconds of a step that nobody watched
    watched_s   seconds of a step under the profiler, which ``slices`` and ``dispatch`` add up to
    cpu_s       processor seconds of all threads, of a step that nobody watched; None where it was not measured
    threads     that may compute
    """

    step_s: float
    watched_s: float
    cpu_s: float | None
    threads: int
    slices: tuple[Slice, ...]

    @property
    def computed(self) -> float:
        """Seconds in which any kernel ran."""
        return sum(s.seconds for s in self.slices)

    @property
    def dispatch(self) -> float:
        """What is left of a step."""
        return max(self.watched_s - self.computed, 0.0)

    @property
    def idle(self) -> float | None:
        """Thread seconds of a step in which a thread that may compute did not."""
        return None if self.cpu_s is None else max(self.threads * self.step_s - self.cpu_s, 0.0)

    @property
    def covered(self) -> float:
        """The share of kernel time whose part is known."""
        known = sum(s.seconds for s in self.slices if s.known)
        return known / self.computed if self.computed else 0.0

    def by_work(self) -> dict[Work, float]:
        """Seconds by kind of work; what the optimizer does is a kind of its own."""
        found: Counter[Work] = Counter()
        for one in self.slices:
            found[one.work] += one.seconds  # type: ignore[assignment]  # Counter of floats
        return {work: float(found[work]) for work in WORKS}

    def by_direction(self) -> dict[Direction, float]:
        """Seconds by direction: forward, backward, what is computed again, update."""
        found: Counter[Direction] = Counter()
        for one in self.slices:
            found[one.part.direction] += one.seconds  # type: ignore[assignment]  # Counter of floats
        return {direction: float(found[direction]) for direction in DIRECTIONS}

    def by_part(self) -> dict[Part, float]:
        """Seconds by part, equal layers together under a star."""
        stars = starred(s.part.path for s in self.slices)
        found: Counter[Part] = Counter()
        for one in self.slices:
            found[Part(stars(one.part.path), one.part.direction)] += one.seconds  # type: ignore[assignment]
        return {part: float(seconds) for part, seconds in found.items()}


def of_xla(optimised: bytes, xplane: bytes, facts: Mapping[str, float]) -> StepProfile:
    """Of a program of XLA's: its optimised HLO, a profile of some steps, and what those took (``steps``,
    ``plain_s``, ``profiled_s``, ``cpu_s``, ``threads``). Raises ProgramError for what cannot be read, and for a profile
    that has no operation of this program."""
    module = read_program(optimised, "hlo-optimised")
    kinds = kinds_of(module)
    seconds = read_xplane(xplane).of_step(shared=True, steps=facts.get("steps"))
    slices = []
    for kernel in {k.name: k for k in kernels(module)}.values():
        if (took := seconds.pop(kernel.name, None)) is not None:
            slices.append(_slice(kernel, kinds[kernel.name], took))
    if not slices:
        raise ProgramError("the runtime's profile has no operation of this program")
    # A loop's own bookkeeping is dispatch; anything else that ran and is not in the program is told.
    inside = {i.name for c in module.computations.values() for i in c.instructions}
    lost = sum(took for name, took in seconds.items() if name not in inside)
    if lost:
        slices.append(Slice(Part("", "forward"), "other", lost, known=False))
    return _cut(facts, slices)


def of_operators(data: bytes, facts: Mapping[str, float]) -> StepProfile:
    """Of a step of PyTorch's, operator by operator. Raises ProgramError where none was timed."""
    seconds = seconds_of(data)
    if not seconds:
        raise ProgramError("no operator was timed")
    slices = [
        _slice(site, kind_of_operator(site.operation), seconds[site.operation.name])
        for site in sites(read_program(data, "operators"))
        if site.operation.name in seconds
    ]
    # Operators cost Python between them while they are watched one by one, and nothing else: what they took themselves
    # is told of the step that nobody watched.
    return _cut({**facts, "profiled_s": facts.get("plain_s", 0.0)}, slices)


def _slice(of: Kernel | Site, kind: Kind, seconds: float) -> Slice:
    # An optimizer that multiplies matrices (Muon) has products.
    update = of.part.direction == "optimizer" and kind not in ("products", "convolutions")
    return Slice(of.part, "optimizer" if update else kind, seconds, of.how in ("name", "flow"))


def _cut(facts: Mapping[str, float], slices: Iterable[Slice]) -> StepProfile:
    return StepProfile(
        facts.get("plain_s", 0.0),
        facts.get("profiled_s", 0.0),
        facts.get("cpu_s"),
        int(facts.get("threads", 1)),
        tuple(slices),
    )
