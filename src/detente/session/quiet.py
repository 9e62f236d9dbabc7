"""Is the machine quiet, who disturbs it, and how long to wait for it.

Looked at before the first process and before every block; measured over every process besides (session/load.py). A
neighbour is never asked to leave: the session waits a while, then goes on, and its record says that it did, so that the
judge says no more than such a machine allows (judge/load.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from detente.judge.headline import LEAST_RATIO
from detente.judge.load import BUSY
from detente.records.fault import UsageFault
from detente.records.session import Neighbour, Wait
from detente.session.budget import Budget
from detente.session.load import ForeignLoad

# How long one look lasts: a clock tick is 10 ms, so that two cores tell steps of 1 %.
LOOK_S = 0.5
# All waiting of a session together: a minute, and never more than a tenth of its budget.
MOST_WAIT_S, WAIT_SHARE = 60.0, 0.1
# Without a budget nobody said how long the session may take; half a minute does not change that.
WAIT_WITHOUT_BUDGET_S = 30.0
_NAMED = 4
# A process below this share is not worth a name.
_WORTH_NAMING = 0.01


@dataclass(frozen=True)
class Look:
    """One look: the share of the machine's CPU time that others used, and who they are, the largest first, as
    (process id, neighbour). Id 0 stands for what has none here."""

    share: float
    neighbours: tuple[tuple[int, Neighbour], ...]

    @property
    def quiet(self) -> bool:
        return self.share <= BUSY

    def told(self) -> str:
        """``python3 (pid 4242) 45 %, cc1plus (pid 4311) 6 %``; empty where nobody stands out."""
        return ", ".join(
            f"{n.name}{f' (pid {pid})' if pid else ''} {100 * n.share:.0f} %" for pid, n in self.neighbours
        )


def look(seconds: float = LOOK_S, stop: Callable[[], bool] = lambda: False) -> Look:
    """Who uses this machine besides us and our children. Takes ``seconds``, or less when ``stop`` says so.

    What runs in another container, ended meanwhile, or belongs to the host of a virtual machine (time that it takes is
    *steal*) has no name here; where that is most of the load it is listed as such.
    """
    load, times, steal, own = ForeignLoad(), dict(_processes()), _steal(), _children_s()
    begun = deadline = time.monotonic()
    deadline += seconds
    while (left := deadline - time.monotonic()) > 0 and not stop():
        time.sleep(min(0.1, left))
    capacity = max(1e-9, (time.monotonic() - begun) * (psutil.cpu_count() or 1))
    # Children that still run are in nobody's account but their own: a proof beside another is no neighbour of it.
    share = max(0.0, load.share() - max(0.0, _children_s() - own) / capacity)
    found = []
    for pid, (name, used) in _processes():
        if pid in times and (part := (used - times[pid][1]) / capacity) >= _WORTH_NAMING:
            found.append((pid, Neighbour(name, round(min(1.0, part), 3))))
    stolen = (_steal() - steal) / capacity
    if stolen >= _WORTH_NAMING:
        found.append((0, Neighbour("the host of this virtual machine", round(min(1.0, stolen), 3))))
    hidden = share - sum(n.share for _, n in found)
    if hidden > share / 2 and hidden >= _WORTH_NAMING:
        found.append((0, Neighbour("processes that cannot be seen from here", round(hidden, 3))))
    found.sort(key=lambda entry: -entry[1].share)
    return Look(share, tuple(found[:_NAMED]))


def _processes() -> Iterator[tuple[int, tuple[str, float]]]:
    """Id -> (name, CPU seconds) of every process that is neither this one nor a descendant of it."""
    ours = {os.getpid()}
    with contextlib.suppress(psutil.Error):
        ours |= {child.pid for child in psutil.Process().children(recursive=True)}
    for p in psutil.process_iter(["name", "cpu_times"]):
        times = p.info["cpu_times"]
        if p.pid not in ours and times is not None:
            yield p.pid, (_clean(p.info["name"] or f"process {p.pid}"), times.user + times.system)


def _children_s() -> float:
    """CPU seconds of our descendants that are alive."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = child.cpu_times()
                total += times.user + times.system
    return total


def _clean(name: str) -> str:
    """A process may call itself anything; what is printed and stored holds no control character."""
    return "".join(c for c in name if c.isprintable())[:40] or "(no name)"


def _steal() -> float:
    return getattr(psutil.cpu_times(), "steal", 0.0)


def allowance_s(budget_s: float | None) -> float:
    """Seconds that a session may wait in all: a tenth of its budget, a minute at most; half a minute without a budget.
    ``DETENTE_QUIET_WAIT`` (seconds) replaces the rule: 0 never waits, and the load is recorded all the same."""
    told = os.environ.get("DETENTE_QUIET_WAIT")
    if told is not None:
        try:
            seconds = float(told)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            raise UsageFault(
                f"DETENTE_QUIET_WAIT is {told!r}", "write seconds: 0 to never wait for a quiet machine"
            )
        return seconds
    return WAIT_WITHOUT_BUDGET_S if budget_s is None else min(MOST_WAIT_S, WAIT_SHARE * budget_s)


class Quiet:
    """The looks of one session. ``before`` is asked before every process and does nothing before most of them."""

    def __init__(
        self,
        budget: Budget,
        say: Callable[[str], None],
        stop: Callable[[], bool],
        looking: Callable[..., Look] = look,
    ) -> None:
        self.budget, self.say, self.stop, self.looking = budget, say, stop, looking
        self.left_s = allowance_s(budget.limit_s)
        self._block: int | None = None
        self._kept: tuple[Wait, ...] = ()
        self._warned = False

    def before(self, kind: str, block: int) -> tuple[Wait, ...]:
        """Look, and wait if need be, before the session's first process and before the first of each block. Returns the
        looks that the record of this process carries: only timing processes carry any, since proofs are kept for other
        sessions."""
        if self._block is None or (kind == "time" and block != self._block):
            # The first process is usually a proof; the first block is then looked at again, minutes later.
            self._block = block if kind == "time" else -1
            self._kept += (self._wait(),)
        if kind != "time":
            return ()
        kept, self._kept = self._kept, ()
        return kept

    def _wait(self) -> Wait:
        begun = time.monotonic()
        first = last = self.looking(LOOK_S, self.stop)
        if first.quiet:
            return Wait(first.share, first.share, 0.0, True)
        may = self._may_wait()
        who = first.told()
        self.say(
            f"others use {100 * first.share:.0f} % of this machine{f': {who}' if who else ''}"
            + (f"; waiting up to {may:.0f} s for it to be quiet" if may >= LOOK_S else "")
        )
        deadline = time.monotonic() + may
        while not last.quiet and time.monotonic() + LOOK_S <= deadline and not self.stop():
            last = self.looking(2 * LOOK_S, self.stop)
        waited = time.monotonic() - begun if may >= LOOK_S else 0.0
        self.left_s = max(0.0, self.left_s - waited)
        self._tell(last, waited)
        worst = max((first, last), key=lambda one: one.share)
        return Wait(
            first.share, last.share, round(waited, 1), last.quiet, tuple(n for _, n in worst.neighbours)
        )

    def _may_wait(self) -> float:
        """What is left of the allowance, and at most a tenth of what is left of the budget: a session that is started
        with little time must not spend it all waiting."""
        left = self.budget.left_s
        return self.left_s if left is None else max(0.0, min(self.left_s, WAIT_SHARE * left))

    def _tell(self, last: Look, waited: float) -> None:
        if last.quiet:
            self.say(f"quiet after {waited:.0f} s")
        elif not self._warned:
            self._warned = True
            self.say(
                "going on beside others: SAME is not said of this session, and no difference under "
                f"{LEAST_RATIO:g}x becomes a headline"
            )
