"""A session under way: what its stages share, and one process of it made a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detente.records.cell import Cell
from detente.records.job import JobKind
from detente.records.session import Process, Session, Wait
from detente.session.budget import Budget
from detente.session.interrupts import Interrupts
from detente.session.layout import Layout
from detente.session.ledger import Ledger
from detente.session.quiet import Quiet
from detente.session.request import Request
from detente.session.spawn import Spawned
from detente.session.tally import Tally
from detente.session.unmade import Unmade
from detente.session.workers import Workers


class Stopped(Exception):
    """The user interrupted; what finished is kept."""


@dataclass(frozen=True)
class Underway:
    """What every stage of a session (proofs, weights, blocks, memory) works with. ``open_still``: whether the question
    that it is measured for is open, asked where more blocks than the settled number may be run."""

    request: Request
    layout: Layout
    ledger: Ledger
    budget: Budget
    tally: Tally
    workers: Workers
    interrupts: Interrupts
    quiet: Quiet
    unmade: Unmade
    open_still: Callable[[Session], bool] = lambda session: False

    def alive(self) -> list[Cell]:
        """The cells that can run and did not fail, in display order. What something outside killed in an earlier run
        of this session runs again."""
        session = self.ledger.session
        gone = (session.dead() - self.ledger.run_again()) | set(session.skipped)
        return [c for c in self.layout.runnable() if c.key not in gone]

    def process(
        self,
        kind: JobKind,
        cell: Cell,
        block: int = -1,
        order: int = 0,
        on_phase: Callable[[str], None] = lambda phase: None,
        **job: Any,
    ) -> Process:
        """Run one worker to its end and make its record, which the caller keeps or drops; ``on_phase`` hears its
        phases, ``job``: further fields of the Job. Raises Stopped when the user interrupted: an unfinished process
        leaves no trace."""
        waits = self.quiet.before(kind, block)
        if self.interrupts.count:
            raise Stopped
        tell = self.tally.tell
        where = f"block {block + 1}" if block >= 0 else kind
        title = f"{cell.workload} {cell.size} {cell.label}: {where}"
        tell("start", title, cell=cell.key, eta_s=self._eta())

        def heard(phase: str) -> None:
            on_phase(phase)
            tell("phase", title, cell=cell.key, phase=phase)

        spawned = self.workers.run(
            kind,
            cell,
            heard,
            capped=True,
            **job,
        )
        if spawned.killed_by_user:
            raise Stopped
        return self.record(kind, cell, spawned, block, order, waits)

    def record(
        self,
        kind: JobKind,
        cell: Cell,
        spawned: Spawned,
        block: int = -1,
        order: int = 0,
        waits: tuple[Wait, ...] = (),
    ) -> Process:
        """A worker that ended, told and made a record."""
        where = f"block {block + 1}" if block >= 0 else kind
        title = f"{cell.workload} {cell.size} {cell.label}: {where}"
        self.tally.done += 1
        self.budget.estimates.saw(kind, cell, spawned.wall_s)
        self.tally.tell("end", f"{title} {_outcome(kind, spawned)}", cell=cell.key, eta_s=self._eta())
        if spawned.evidence.left:
            self.tally.say(f"{cell.label} left {spawned.evidence.left}")
        return process_of(kind, cell, spawned, block, order, waits)

    def _eta(self) -> float | None:
        return self.budget.eta_s(self.tally.left)


def _outcome(kind: JobKind, spawned: Spawned) -> str:
    e = spawned.evidence
    if kind == "prepare" and e.status != "ok":
        return e.status  # the reason is the reason of every row, and told once, with them
    return f"took {spawned.wall_s:.1f} s" if e.status == "ok" else f"{e.status}: {e.reason}"


def process_of(
    kind: JobKind,
    cell: Cell,
    spawned: Spawned,
    block: int = -1,
    order: int = 0,
    waits: tuple[Wait, ...] = (),
) -> Process:
    """The record of a worker that ended, as a session keeps it."""
    return Process(
        cell,
        kind,
        block,
        order,
        spawned.started,
        spawned.wall_s,
        spawned.foreign,
        spawned.evidence,
        _shareable(spawned.environment),
        waits,
        spawned.phases,
    )


def _shareable(environment: dict[str, str]) -> dict[str, str]:
    """The environment without its paths: a session is exported to other people's machines."""
    return {k: "(path)" if "/" in v else v for k, v in environment.items()}
