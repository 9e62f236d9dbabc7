"""The session's order of things: plan, proofs, weights, blocks, memory, end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from detente.records.fault import MachineFault, UsageFault
from detente.records.folders import data_folder
from detente.records.session import Fingerprint, Process, Session
from detente.session.asked import settings_of
from detente.session.blocks import UNJUDGED_BLOCKS, run_blocks
from detente.session.budget import Budget
from detente.session.edited import Unedited
from detente.session.fingerprint import OWN_FILES, differences, take_fingerprint
from detente.session.interrupts import Interrupts
from detente.session.layout import Layout, lay_out
from detente.session.ledger import Ledger, Recorder
from detente.session.lock import MachineLock
from detente.session.memory_runs import run_memory
from detente.session.plans import run_plans
from detente.session.progress import Sink
from detente.session.proofs_kept import put_back
from detente.session.quiet import Quiet
from detente.session.ready import make_ready
from detente.session.request import Request
from detente.session.resting import rest_before
from detente.session.smallest_memory import run_smallest
from detente.session.tally import Tally
from detente.session.underway import Stopped, Underway
from detente.session.unmade import Unmade
from detente.session.workers import Workers
from detente.store.spool import Spool

LOCK_WAIT_S = 24 * 3600.0


def run_session(
    request: Request,
    sink: Sink,
    recorder: Recorder | None = None,
    resume: Path | None = None,
    known: Sequence[Process] = (),
    open_still: Callable[[Session], bool] = lambda session: False,
) -> Session:
    """Measure, and return the session with everything that finished, also after an interruption (``note`` says so).
    ``known``: processes of its cells that ran before it (captures), which it keeps as its own. ``open_still``: whether
    what the session is measured for is open; with it, ``request.blocks_at_most`` blocks may follow ``request.blocks``.

    Raises UsageFault for a wrong request or a changed fingerprint on resume, MachineFault for a held lock, StoreFault
    when the spool cannot be written.
    """
    layout = lay_out(request)
    fingerprint = take_fingerprint(settings_of(request, layout))
    if resume is None:
        spool, session = _begin(request, layout, fingerprint, known)
    else:
        spool, session = _continue(resume, fingerprint)
    with spool, Interrupts() as interrupts:
        budget, tally = Budget(request.budget_s), Tally(sink)
        under = Underway(
            request,
            layout,
            Ledger(session, spool, recorder),
            budget,
            tally,
            Workers(request, session.id, interrupts, _unedited(session).check),
            interrupts,
            Quiet(budget, tally.say, lambda: interrupts.count > 0),
            Unmade(),
            open_still,
        )
        try:
            with MachineLock(LOCK_WAIT_S, under.tally.say, lambda: interrupts.count > 0):
                return _stages(under)
        except MachineFault:
            if interrupts.count:  # pressed while waiting for another session: the user's wish, not a fault
                return under.ledger.end("interrupted")
            raise


def _begin(
    request: Request, layout: Layout, fingerprint: Fingerprint, known: Sequence[Process]
) -> tuple[Spool, Session]:
    now = time.time()
    name = time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + "-" + secrets.token_hex(2)
    session = Session(
        name, now, request.command, fingerprint, layout.cells, dict(layout.skipped), layout.aa, tuple(known)
    )
    return Spool.create(data_folder() / "sessions", session), session


def _continue(resume: Path, fingerprint: Fingerprint) -> tuple[Spool, Session]:
    """What an earlier run left, if this is still the machine and the request that it was measured under."""
    spool, session = Spool.open(resume)
    changed = differences(session.fingerprint, fingerprint)
    if changed:
        spool.close()
        raise UsageFault(
            f"session {session.id} cannot be continued: " + "; ".join(changed[:6]),
            "leave --resume out to measure anew",
        )
    return spool, session


def _unedited(session: Session) -> Unedited:
    return Unedited(session.planned, session.fingerprint.settings.get(OWN_FILES, {}), session.id)


def _stages(under: Underway) -> Session:
    """One after the other, each whole before the next; what an interruption leaves is kept."""
    note = ""
    under.budget.begin()
    try:
        _plan(under)
        rest_before(under)
        cells = [c for c in under.layout.runnable() if c.key not in under.ledger.session.rested]
        make_ready(under, cells)
        if under.unmade and not under.alive():
            under.ledger.end("nothing could be prepared")
            raise under.unmade.fault()
        run_plans(under, cells)
        run_blocks(under)
        run_memory(under)
        run_smallest(under)
    except Stopped:
        note = "interrupted"
        under.tally.say(
            "interrupted; everything that finished is kept: "
            f"`detente compare --resume {under.ledger.session.id}` continues"
        )
    finally:
        under.workers.forget_caches()
    put_back(under)
    return under.ledger.end(note)


def _plan(under: Underway) -> None:
    session, request, cells = under.ledger.session, under.request, under.layout.runnable()
    for key, why in session.skipped.items():
        under.tally.tell("note", f"{key.rsplit('/', 1)[1]} is skipped: {why}", cell=key)
    blocks = request.blocks or UNJUDGED_BLOCKS
    under.tally.total = blocks * len(cells) + (len(cells) if request.memory else 0)
    budget = f", within {request.budget_s:.0f} s" if request.budget_s else ""
    more = "" if request.blocks and not request.blocks_at_most else " or more"
    rows = f"{len(cells)} row{'s' if len(cells) != 1 else ''}"
    wanted = f"{blocks} block{'s' if blocks != 1 else ''}{more}{budget}"
    under.tally.tell("plan", f"session {session.id}: {rows}, {wanted}")
