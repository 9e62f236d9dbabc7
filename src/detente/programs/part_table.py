"""A program's parts in one table: what each holds, as it was handed to the compiler and as it was compiled, and how
long its kernels took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from detente.programs.fold import fold
from detente.programs.module import Module
from detente.programs.parts import Facts, How, Kernel, Part, coverage, grouped, kernels, parts, sites

HOWS: tuple[How, ...] = ("name", "flow", "guess", "none")


@dataclass(frozen=True)
class PartRow:
    """Equal layers are one row: ``path`` has a star where they differ and ``members`` lists them. The figures are those
    of all of them together.

    operations  of a step, as handed to the compiler: calls opened, and a loop's body as often as it runs
    flops       of products, of a step
    bytes       of results, of a step, as written: fusing spares most of them
    kernels     of a step of the compiled program; None where there is none
    seconds     in its kernels, of a step, threads added up; None where nothing was profiled
    at_peak     bytes of temporaries that it made, of what is there when most is; None where the compiler tells nobody
    """

    path: str
    direction: str
    members: tuple[Part, ...]
    operations: int
    flops: int
    bytes: int
    dtypes: Mapping[str, int]
    kernels: int | None = None
    seconds: float | None = None
    at_peak: int | None = None

    @property
    def times(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class PartTable:
    """``of_operations``, as written, and ``of_time``: the shares whose part is known by name, by dataflow, by a guess,
    or not at all; a guess is no knowledge. ``shared_s``: seconds of kernels that hold operations of several parts; each
    is counted with one (parts.py, Kernel). ``step_s``: all that was profiled, threads added up. ``executables``: how
    many programs a step was handed over in; of more than one the first alone is divided."""

    rows: tuple[PartRow, ...]
    of_operations: Mapping[How, float]
    of_time: Mapping[How, float] = field(default_factory=dict)
    shared_s: float = 0.0
    step_s: float = 0.0
    executables: int = 1

    @property
    def covered(self) -> float:
        """The share of operations whose part is known."""
        return self.of_operations["name"] + self.of_operations["flow"]

    @property
    def covered_time(self) -> float | None:
        """The share of time whose part is known; None where nothing was profiled."""
        return self.of_time["name"] + self.of_time["flow"] if self.of_time else None


def part_table(
    handed: Module,
    compiled: Module | None,
    seconds: Mapping[str, float],
    groups: Mapping[str, Sequence[str]] | None = None,
    at_peak: Mapping[str, int] | None = None,
) -> PartTable:
    """The parts of a program as it was ``handed`` over. ``compiled``: what became of it, or ``groups``: the operations
    that each of its kernels holds. ``seconds`` of a step by name of the kernels; of a traced program both are the same.
    ``at_peak``: bytes by name of the kernel that made them."""
    found = sites(handed)
    table = parts(found)
    runs = kernels(compiled) if compiled is not None else grouped(found, groups or {})
    numbers: Counter[Part] = Counter()
    for kernel in runs:
        numbers[kernel.part] += kernel.runs
    times: Counter[Part] = Counter()
    for kernel, spent in _timed(runs, seconds):
        times[kernel.part] += spent  # type: ignore[assignment]  # Counter of floats
    made: Counter[Part] = Counter()
    for kernel, size in _timed(runs, at_peak or {}):
        made[kernel.part] += int(size)
    for part in (*numbers, *times, *made):
        table.setdefault(part, Facts())
    rows = []
    for one in fold(table):
        facts = [table[m] for m in one.members]
        rows.append(
            PartRow(
                one.path,
                one.direction,
                one.members,
                sum(f.operations for f in facts),
                sum(f.flops for f in facts),
                sum(f.bytes for f in facts),
                dict(sum((f.dtypes for f in facts), Counter())),
                sum(numbers[m] for m in one.members) if runs else None,
                sum(times[m] for m in one.members) if seconds else None,
                sum(made[m] for m in one.members) if at_peak is not None else None,
            )
        )
    # What runs inside of a kernel (a piece of one that is split among threads) has been counted with it.
    inside = {k.name for k in runs}
    if compiled is not None:
        inside = {i.name for c in compiled.computations.values() for i in c.instructions}
    lost = sum(s for name, s in seconds.items() if name not in inside)
    by_how: Counter[How] = Counter({"none": lost})  # type: ignore[dict-item]
    for kernel, spent in _timed(runs, seconds):
        by_how[kernel.how] += spent  # type: ignore[assignment]
    whole = sum(by_how.values())
    return PartTable(
        tuple(rows),
        coverage(found),
        {how: by_how[how] / whole for how in HOWS} if whole else {},
        sum(s for k, s in _timed(runs, seconds) if k.shared),
        float(whole),
    )


def _timed(runs: Iterable[Kernel], figures: Mapping[str, float]) -> list[tuple[Kernel, float]]:
    """Kernels with their figure, a name once."""
    named = {k.name: k for k in runs}
    return [(kernel, figures[name]) for name, kernel in named.items() if name in figures]
