"""A session: one ``compare``, as it is spooled, stored and judged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.records.window import Replay


def replay_name(cell: Cell, block: int) -> str:
    """How the window of a cell's process in a block is called where it is taken again."""
    return f"{block}/{cell.key}"


# What the second name of a row's A/A pair ends with.
TWIN = "#aa"
# A process that is killed this often is not killed by chance.
MOST_KILLS = 3


@dataclass(frozen=True)
class Fingerprint:
    """The machine and the settings that must not change within a session. Versions belong to the stacks.

    machine   processor, cores, memory, kernel, devices and drivers
    settings  seed, threads, sampling, margins: what the session was asked for
    source    SHA-256 over detente's own source files
    """

    machine: dict[str, Any]
    settings: dict[str, Any]
    source: str


@dataclass(frozen=True)
class Neighbour:
    """A process of somebody else's that used the processor: its name and its share of the machine, 0 to 1. Neither
    command line nor owner, because sessions are shown to other people."""

    name: str
    share: float


@dataclass(frozen=True)
class Wait:
    """The load of others just before a block, and what came of waiting for them.

    before      share of the machine's CPU time that others used when the session looked first, 0 to 1
    after       the share at the last look
    seconds     how long the session waited; 0 where it did not have to, or had no time left for it
    quiet       whether the machine was quiet at last; False: the block ran beside others
    neighbours  who they were, the largest first
    """

    before: float
    after: float
    seconds: float
    quiet: bool
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True)
class Process:
    """One fresh run of one cell: the replicate.

    block      number of the block, from 0; -1 for a run outside the blocks (memory, capture, prepare)
    order      position inside the block
    started    seconds since the epoch
    wall_s     life of the process
    foreign    share of the machine's CPU time that other processes used meanwhile, 0 to 1; NaN where nobody knows
    environment  variables that the worker started with, after scrubbing
    phases     seconds of each phase of the worker by the parent's clock, in order
    waits      looks at the machine's load since the process before, this one's own last
    """

    cell: Cell
    kind: str
    block: int
    order: int
    started: float
    wall_s: float
    foreign: float
    evidence: Evidence
    environment: dict[str, str] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    phases: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """What was asked, and every process that finished. ``planned`` is the denominator: a cell that failed,
    ran out of memory or was skipped stays in it. ``aa`` names the two labels of the A/A pair, of several workloads
    those of the last one (``pair_among``). ``rested`` maps the key of a row that let others go first, because the
    budget did not hold enough blocks of all, to that reason: it keeps its figures, and no block waits for it.

    looked     how often it ended with blocks enough for words: each time somebody reads them, and may ask for more
    imported   seconds since the epoch when the session was taken from a file; None: it was measured here. Whoever
               reads a stranger's file sets it, whatever the file says of itself
    """

    id: str
    started: float
    command: tuple[str, ...]
    fingerprint: Fingerprint
    planned: tuple[Cell, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    aa: tuple[str, str] | None = None
    processes: tuple[Process, ...] = ()
    ended: float | None = None
    note: str = ""
    rested: dict[str, str] = field(default_factory=dict)
    looked: int = 0
    imported: float | None = None

    def pair_among(self, labels: Collection[str]) -> tuple[str, str] | None:
        """The A/A pair among the labels of one group. Each workload has one of its own, of the first row that can run
        there: where the first stack has no definition of a workload it is another row's, and ``aa`` names one of them.
        Its noise was nobody's, and its twin a row that was compared with its own sibling."""
        if self.aa is None or all(label in labels for label in self.aa):
            return self.aa
        twins = (label for label in labels if label.endswith(TWIN) and label.removesuffix(TWIN) in labels)
        return next(((label.removesuffix(TWIN), label) for label in twins), None)

    def replays_of(self, cell: Cell, block: int) -> tuple[Replay, ...]:
        """The stretches of the window of this cell's process in this block that were taken again; of several attempts
        the last."""
        name = replay_name(cell, block)
        found = [p.evidence.replays[name] for p in self.processes if name in p.evidence.replays]
        return found[-1] if found else ()

    def of(self, cell: Cell, kind: str = "time") -> tuple[Process, ...]:
        """The processes of one cell, in the order in which they ran. One that something outside killed and that ran
        again counts no more: the later one stands for it."""
        return tuple(p for p in self.processes if p.kind == kind and p.cell == cell and not self.ran_again(p))

    def every(self, cell: Cell, kind: str = "time") -> tuple[Process, ...]:
        """The processes of one cell with those that were killed and ran again."""
        return tuple(p for p in self.processes if p.kind == kind and p.cell == cell)

    def ran_again(self, process: Process) -> bool:
        """Whether this process was killed from outside and a later one of its cell and kind ran in its place. The
        evidence of both is kept; only the later one is judged. What fails by itself is never replaced."""
        if not process.evidence.killed:
            return False
        return self._last[process.cell.key, process.kind] is not process

    def to_run_again(self, cell: Cell, kind: str = "time") -> bool:
        """Whether ``--resume`` should run the cell's last process again: something outside killed it. After
        ``MOST_KILLS`` the cause is not outside, and it stays as it is."""
        last = self._last.get((cell.key, kind))
        if last is None or not last.evidence.killed:
            return False
        kills = sum(p.kind == kind and p.cell == cell and bool(p.evidence.killed) for p in self.processes)
        return kills < MOST_KILLS

    @cached_property
    def _last(self) -> dict[tuple[str, str], Process]:
        return {(p.cell.key, p.kind): p for p in self.processes}

    def dead(self) -> frozenset[str]:
        """Keys of cells of which a timing process did not end well. They run no further and hold no block up."""
        return frozenset(
            p.cell.key
            for p in self.processes
            if p.kind == "time" and p.evidence.status != "ok" and not self.ran_again(p)
        )

    def whole_blocks(self) -> tuple[int, ...]:
        """The blocks in which every planned cell that can run has finished. Only these are judged. A cell that was
        killed and ran again later is missing from its own block: it would be paired with what ran an hour before."""
        need = {c.key for c in self.planned if c.key not in self.skipped} - self.dead() - self.rested.keys()
        done: dict[int, set[str]] = {}
        for p in self.processes:
            if p.kind == "time" and p.block >= 0 and not self.ran_again(p):
                done.setdefault(p.block, set()).add(p.cell.key)
        return tuple(sorted(b for b, keys in done.items() if need and need <= keys))
