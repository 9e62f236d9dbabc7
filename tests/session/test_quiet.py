"""Waiting for a quiet machine: who is named, how long it may take, what the record keeps."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from detente.judge.load import BUSY
from detente.records.fault import UsageFault
from detente.records.session import Neighbour
from detente.session.budget import Budget
from detente.session.quiet import Look, Quiet, allowance_s, look

BUSY_LOOK = Look(0.5, ((4242, Neighbour("cc1plus", 0.45)),))
QUIET_LOOK = Look(0.01, ())


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    monkeypatch.delenv("DETENTE_QUIET_WAIT", raising=False)


def quiet_of(looks, budget: Budget, said: list[str], stop=lambda: False) -> Quiet:
    """A ``Quiet`` whose looks are these, the last one for ever; each takes a twentieth of a second."""
    found = iter(looks)
    last = [QUIET_LOOK]

    def looking(seconds, stop):
        time.sleep(0.05)
        last[0] = next(found, last[0])
        return last[0]

    return Quiet(budget, said.append, stop, looking)


def test_the_time_out_is_a_tenth_of_the_budget_and_a_minute_at_most(monkeypatch):
    assert (allowance_s(None), allowance_s(100.0), allowance_s(3600.0)) == (30.0, 10.0, 60.0)
    monkeypatch.setenv("DETENTE_QUIET_WAIT", "0")
    assert allowance_s(3600.0) == 0.0
    for wrong in ("soon", "-1", "nan", "inf", ""):
        monkeypatch.setenv("DETENTE_QUIET_WAIT", wrong)
        with pytest.raises(UsageFault, match="DETENTE_QUIET_WAIT"):
            allowance_s(None)


def test_a_quiet_machine_costs_one_look_a_block_and_no_word():
    said: list[str] = []
    quiet = quiet_of([QUIET_LOOK], Budget(None), said)
    assert quiet.before("prove", -1) == ()
    # The look before the first process travels with the first timing process; a proof is kept for other sessions.
    assert [w.quiet for w in quiet.before("time", 0)] == [True, True]
    assert (
        quiet.before("time", 0) == ()
        and quiet.before("prepare", -1) == ()
        and quiet.before("memory", -1) == ()
    )
    assert len(quiet.before("time", 1)) == 1 and said == []


def test_it_waits_says_for_whom_and_goes_on_when_it_is_quiet():
    said: list[str] = []
    quiet = quiet_of([BUSY_LOOK, BUSY_LOOK, QUIET_LOOK], Budget(None), said)
    (wait,) = quiet.before("time", 0)
    assert wait.quiet and (wait.before, wait.after) == (0.5, 0.01) and wait.seconds > 0
    assert wait.neighbours == (Neighbour("cc1plus", 0.45),)
    assert "cc1plus (pid 4242) 45 %" in said[0] and "50 %" in said[0] and said[1].startswith("quiet after")


def test_after_the_time_out_it_goes_on_and_the_record_says_so(monkeypatch):
    monkeypatch.setenv("DETENTE_QUIET_WAIT", "1")
    said: list[str] = []
    quiet = quiet_of([BUSY_LOOK], Budget(None), said)
    (wait,) = quiet.before("time", 0)
    assert not wait.quiet and wait.after == 0.5 and 0 < wait.seconds <= 1.5
    assert "SAME is not said" in said[-1] and "1.25x" in said[-1]
    # The time-out is the session's, not the block's: later blocks are looked at and not waited for.
    begun = time.monotonic()
    for block in range(1, 6):
        assert not quiet.before("time", block)[0].quiet
    assert time.monotonic() - begun < 1.5
    assert sum("SAME is not said" in text for text in said) == 1


def test_a_session_with_little_time_left_does_not_spend_it_waiting():
    budget = Budget(600.0)
    budget._begun -= 597.0  # three seconds are left
    said: list[str] = []
    begun = time.monotonic()
    (wait,) = quiet_of([BUSY_LOOK], budget, said).before("time", 0)
    assert time.monotonic() - begun < 0.5 and wait.seconds == 0 and not wait.quiet
    assert "waiting" not in said[0]


def test_an_interrupt_ends_the_wait():
    begun = time.monotonic()
    quiet_of([BUSY_LOOK], Budget(None), [], stop=lambda: True).before("time", 0)
    assert time.monotonic() - begun < 1


BURN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"


def test_a_neighbour_is_seen_and_named_and_our_own_children_are_not(monkeypatch):
    """A real look. The neighbour is started through a shell that ends, so that it is nobody's child of ours."""
    monkeypatch.setattr(
        "detente.session.quiet._NAMED", 1000
    )  # on a crowded machine it is not one of the first
    started = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, BURN],
        capture_output=True,
        text=True,
        check=True,
    )
    neighbour = int(started.stdout)
    child = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        for _ in range(20):  # on a crowded machine it may get little of many looks
            seen = look(1.0)
            if neighbour in dict(seen.neighbours):
                break
        named = dict(seen.neighbours)
        assert neighbour in named and named[neighbour].share > 0 and named[neighbour].name
        assert child.pid not in named and os.getpid() not in named
        assert f"(pid {neighbour})" in seen.told() and 0 < seen.share <= 1
        assert seen.quiet is (seen.share <= BUSY)
    finally:
        child.kill()
        child.wait()
        os.kill(neighbour, 9)


def test_doctor_names_them_in_the_same_way(monkeypatch):
    from detente.session import doctor

    monkeypatch.setattr(doctor, "look", lambda seconds: BUSY_LOOK)
    check = doctor._load()
    assert check.state == "warn" and "50 % of the machine: cc1plus (pid 4242) 45 %" in check.what
    assert "1.25x" in check.fix
