"""Judging what is stored: for a session that a stranger wrote, evidence that no rule can read is the file's fault."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from detente.records.codec import shown
from detente.records.fault import Fault, StoreFault
from detente.records.result import Result
from detente.records.session import Session

if TYPE_CHECKING:
    from detente.store.sessions import Store


def judged(session: Session, *, page: bool = False) -> Result:
    """The result of a session; with ``page`` it is also laid out once, as every report does.

    The free-form part of the evidence (what the probes found, the machine, the settings) has no schema. Where a rule
    stumbles over it and the session was imported, that is a StoreFault that names the session, not a bug of ours; in a
    session that was measured here it is a bug, and is raised as it is.
    """
    from detente.judge import judge

    with a_strangers_fault(session):
        result = judge(session)
        if page:
            from detente.report.terminal import render_text

            render_text(result, full=True)
        return result


@contextmanager
def a_strangers_fault(session: Session) -> Iterator[None]:
    """What stumbles inside over the evidence of an imported session is a StoreFault that names the session."""
    try:
        yield
    except Fault:
        raise
    except Exception as error:
        if session.imported is None:
            raise
        raise StoreFault(
            f"the evidence of session {session.id} is not what a worker writes, and cannot be judged: "
            f"{type(error).__name__}: {shown(str(error))}",
            "it was imported: the file was changed, or a version that this one does not know wrote it",
        ) from error


def judge_stored(store: Store, ids: Iterable[str], bad: Callable[[str, str], None]) -> None:
    """Judge these stored sessions and remember what was said, for ``history``, which leaves void rows out. What cannot
    be read or judged is told to ``bad``. Nothing is done where no judge is installed."""
    if not can_judge():
        return
    for id in ids:
        try:
            store.write_judgement(judged(store.read_session(id)))
        except Fault as fault:
            bad(id, fault.message)
        except Exception as error:  # one session that a rule stumbles over must not end what tells of all
            bad(
                id,
                f"it cannot be judged ({type(error).__name__}: {shown(str(error))}); `detente audit {id}` says more",
            )


def can_judge() -> bool:
    """Whether scipy is there: a machine may measure, and have none."""
    return importlib.util.find_spec("scipy") is not None
