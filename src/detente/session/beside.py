"""Workers beside each other, a thread and a core each: for proofs, which no clock watches. Never while anything is
timed: what is timed has the machine to itself."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from detente.records.cell import Cell
from detente.records.job import JobKind
from detente.records.session import Process
from detente.session.spawn import Spawned
from detente.session.underway import Stopped, Underway
from detente.session.workers import Beside


def run_beside(under: Underway, kind: JobKind, cells: Sequence[Cell], **job: Any) -> Iterator[Process]:
    """The records of one worker of each cell, as they end; as many run at a time as the session has cores.

    Raises Stopped after the user interrupted, when what ran has ended (or was killed, and leaves no trace), and
    whatever a worker could not be started for.
    """
    if not cells:
        return
    under.quiet.before(kind, -1)
    waiting = list(cells)
    free = list(under.workers.cpus)
    # What the threads have to say is said by this one: a phase, or how it ended.
    said: queue.SimpleQueue[tuple[Cell, Beside, str | Spawned | BaseException]] = queue.SimpleQueue()

    def one(cell: Cell, place: Beside) -> None:
        # The thread that starts a worker waits for it: a worker dies with the thread that started it.
        try:
            said.put(
                (
                    cell,
                    place,
                    under.workers.run(
                        kind, cell, lambda phase: said.put((cell, place, phase)), beside=place, **job
                    ),
                )
            )
        except BaseException as error:
            said.put((cell, place, error))

    running = 0
    with ThreadPoolExecutor(max_workers=len(free)) as pool:
        while waiting or running:
            while waiting and free and not under.interrupts.count:
                cell = waiting.pop(0)
                under.tally.tell("start", _title(kind, cell), cell=cell.key)
                pool.submit(one, cell, Beside(free.pop(), under.interrupts.tap()))
                running += 1
            if not running:
                raise Stopped
            cell, place, found = said.get()
            if isinstance(found, str):
                under.tally.tell("phase", _title(kind, cell), cell=cell.key, phase=found)
                continue
            running -= 1
            free.append(place.cpu)
            # Here, in the thread that hears signals: one that comes meanwhile must not write to a closed pipe.
            under.interrupts.untap(place.tap)
            if isinstance(found, BaseException):
                waiting.clear()
                raise found
            if not found.killed_by_user:
                yield under.record(kind, cell, found)
    if under.interrupts.count:
        raise Stopped


def _title(kind: JobKind, cell: Cell) -> str:
    return f"{cell.workload} {cell.size} {cell.label}: {kind}"
