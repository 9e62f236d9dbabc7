"""A session: one ``compare``, as it is spooled, stored and judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from detente.records.cell import Cell
from detente.records.evidence import Evidence


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


@dataclass(frozen=True)
class Session:
    """What was asked, and every process that finished. ``planned`` is the denominator: a cell that failed,
    ran out of memory or was skipped stays in it. ``aa`` names the two labels of the A/A pair. ``rested`` maps the
    key of a row that let others go first, because the budget did not hold enough blocks of all, to that reason: it
    keeps its figures, and no block waits for it."""

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

    def of(self, cell: Cell, kind: str = "time") -> tuple[Process, ...]:
        """The processes of one cell, in the order in which they ran."""
        return tuple(p for p in self.processes if p.kind == kind and p.cell == cell)

    def dead(self) -> frozenset[str]:
        """Keys of cells of which a timing process did not end well. They run no further and hold no block up."""
        return frozenset(p.cell.key for p in self.processes if p.kind == "time" and p.evidence.status != "ok")

    def whole_blocks(self) -> tuple[int, ...]:
        """The blocks in which every planned cell that can run has finished. Only these are judged."""
        need = {c.key for c in self.planned if c.key not in self.skipped} - self.dead() - self.rested.keys()
        done: dict[int, set[str]] = {}
        for p in self.processes:
            if p.kind == "time" and p.block >= 0:
                done.setdefault(p.block, set()).add(p.cell.key)
        return tuple(sorted(b for b, keys in done.items() if need and need <= keys))
