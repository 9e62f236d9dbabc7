"""The session as it stands: what is kept is spooled, then recorded, before the next process starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from detente.records.cell import Cell
from detente.records.session import Process, Session
from detente.records.verdict import LEAST_BLOCKS
from detente.store.spool import Spool


class Recorder(Protocol):
    """Where finished processes go besides the spool: the database, where SQLAlchemy is installed."""

    def write_session(self, session: Session) -> None: ...
    def add_process(self, session_id: str, process: Process) -> None: ...


class Ledger:
    """``session`` is always what the spool holds: nothing else writes to either."""

    def __init__(self, session: Session, spool: Spool, recorder: Recorder | None) -> None:
        self.session = session
        self._spool, self._recorder = spool, recorder
        self._begun = time.time(), time.monotonic()
        # What ran before this run: what was killed now is not tried again until somebody says --resume.
        self._earlier = session
        if recorder is not None:
            recorder.write_session(session)

    def keep(self, process: Process) -> None:
        """A process that finished, on disk when this returns."""
        self._spool.append(process)
        self.session = replace(self.session, processes=(*self.session.processes, process))
        if self._recorder is not None:
            self._recorder.add_process(self.session.id, process)

    def run_again(self) -> frozenset[str]:
        """Keys of cells whose last timing process was killed from outside in an earlier run, and has not run since."""
        return frozenset(
            c.key
            for c in self._earlier.planned
            if self._earlier.to_run_again(c) and len(self.session.every(c)) == len(self._earlier.every(c))
        )

    def skip(self, cells: Sequence[Cell], why: str) -> None:
        """These are skipped from now on, and what they did so far is left out."""
        keys = {c.key: why for c in cells}
        self._spool.amend(skipped=keys)
        processes = tuple(p for p in self.session.processes if p.cell.key not in keys)
        self.session = replace(self.session, skipped={**self.session.skipped, **keys}, processes=processes)

    def rest(self, cells: Sequence[Cell], why: str) -> None:
        """These let the others go first: they keep what they did, and no block waits for them."""
        keys = {c.key: why for c in cells}
        self._spool.amend(rested=keys)
        self.session = replace(self.session, rested={**self.session.rested, **keys})
        if self._recorder is not None:
            self._recorder.write_session(self.session)

    def end(self, note: str) -> Session:
        """The session as it stands is the result; ``note`` says why it is not longer."""
        # By a clock that nobody sets: a machine whose time jumps must not have a session that ends before it began.
        began, mark = self._begun
        ended = began + (time.monotonic() - mark)
        # Fewer blocks give no words: who reads such a session learns nothing that could make him ask for more.
        looked = int(len(self.session.whole_blocks()) >= LEAST_BLOCKS)
        self._spool.amend(ended=ended, note=note, looked=looked)
        self.session = replace(self.session, ended=ended, note=note, looked=self.session.looked + looked)
        if self._recorder is not None:
            self._recorder.write_session(self.session)
        return self.session
