"""The worker's phases, as the parent hears them: the stack runs in the worker, and can write to its pipe."""

from __future__ import annotations

import os

import pytest

from detente.session.phase_watch import PhaseWatch
from detente.worker.events import Events


def heard(*phases: str) -> PhaseWatch:
    watch = PhaseWatch(os.getpid(), "steady", "window")
    for phase in phases:
        watch.hear(phase)
    return watch


def test_in_their_order_nothing_is_wrong() -> None:
    watch = heard("import", "build", "reload", "memory", "steady", "window", "keep", "proof", "done")
    assert watch.wrong() == "" and watch.over


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        # To learn before the window whether it will be taken again.
        (("reload", "window", "steady", "window"), "'window' was told before 'steady'"),
        (("steady", "window", "window"), "'window' was told twice"),
        (("steady", "steady", "window"), "'steady' was told twice"),
        (("steady", "window", "keep", "steady"), "'steady' was told twice"),
        (("steady",), "'window' was never told"),
        ((), "'steady' was never told"),
    ],
)
def test_what_a_worker_cannot_have_said_is_told(phases: tuple[str, ...], said: str) -> None:
    assert said in heard(*phases).wrong()


def test_another_pipe_in_the_place_of_the_parents_is_none() -> None:
    """Whoever reads what the worker says could say something else in its name."""
    (read, write), (other_read, other) = os.pipe(), os.pipe()
    events = Events(write)
    events.phase("build")
    assert b'"build"' in os.read(read, 4096)
    held = os.dup(write)
    os.dup2(other, write)
    with pytest.raises(RuntimeError, match="the pipe to the parent was replaced"):
        events.phase("window")
    os.dup2(held, write)
    events.kept("unwanted")
    assert b'"kept"' in os.read(read, 4096)
    for file in (read, held, other_read, other):
        os.close(file)
