"""What the user asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from detente.records.fault import UsageFault
from detente.records.job import Sampling
from detente.records.verdict import MOST_BLOCKS

# What a number of a request may be, where it was given. A budget and a cap of 0 would be none at all, to everything
# that asks whether there is one; a seed that the store cannot hold ended a session that could not be read any more.
RANGES: dict[str, tuple[float, float]] = {
    "budget_s": (1, 1e8),
    "blocks": (1, MOST_BLOCKS),
    "seed": (0, 2**62),
    "threads": (1, 1024),
    "loader_workers": (0, 256),
    "memory_cap": (1, 2**62),
}


@dataclass(frozen=True)
class Request:
    """One ``compare``, as typed. Empty ``stacks`` means the default ones; ``size``, ``contract`` None the workload's.

    size       a size's name; dimensions of it are set behind commas, ``paper,batch=4``, or ``,batch=4`` of the largest
    loader_workers  processes of the loader, with the feed ``loader``
    blocks     exactly this many blocks, instead of the sampling rule
    blocks_at_most  or up to this many, as long as whoever runs the session finds its question open (``run_session``)
    budget_s   no new block, and no new memory run, starts that would end later than this after the start
    aa         whether one stack runs under a second name to measure the session's noise
    smallest_memory  also search the smallest cap under which each row still runs
    left_out   of an explanation: cause -> why the budget does not hold it, for whoever tells the session later
    probes     overrides the probes of the first block (tests)
    limits     seconds per phase that differ from the table in spawn.py (tests, slow machines)
    """

    workloads: tuple[str, ...]
    stacks: tuple[str, ...] = ()
    size: str | None = None
    contract: str | None = None
    precision: str = "fp32"
    feed: str = "resident"
    loader_workers: int = 0
    device: str = "auto"
    budget_s: float | None = None
    blocks: int | None = None
    blocks_at_most: int | None = None
    seed: int = 20260101
    threads: int | None = None
    aa: bool = True
    memory: bool = True
    memory_cap: int | None = None
    smallest_memory: bool = False
    sampling: Sampling = Sampling()
    command: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)


def check_ranges(request: Request) -> None:
    """Raises UsageFault for a number that is out of its range, or none."""
    for name, (low, high) in RANGES.items():
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise UsageFault(
                f"{name.removesuffix('_s').replace('_', ' ')} is {value:.15g}",
                f"it lies between {low:g} and {high:g}, or is left out",
            )
