"""Every test runs in a home of its own: nothing is read from or left in the user's folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = str(ROOT / "src")
if SOURCE not in sys.path:
    sys.path.insert(0, SOURCE)


# A shell that starts a process behind an `&` has it ignore Ctrl-C, and then no test of an interrupt sees one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One DETENTE_HOME for the whole run, so that prepared weights and proofs are made once."""
    folder = tmp_path_factory.mktemp("home")
    # Environments are large and slow to make; a test run may be pointed at a home that has them.
    shared = os.environ.get("DETENTE_TEST_ENVIRONMENTS")
    if shared:
        (folder / "data").mkdir()
        (folder / "data" / "environments").symlink_to(shared)
    os.environ["DETENTE_HOME"] = str(folder)
    os.environ["DETENTE_LOCK"] = str(folder / "lock")
    # Tests run beside each other, so that no machine is ever quiet: sessions look at the load, and do not wait.
    os.environ.setdefault("DETENTE_QUIET_WAIT", "0")
    # A replay is a process of its own for each row: tests that are about something else do without.
    os.environ.setdefault("DETENTE_REPLAY", "0")
    paths = [SOURCE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist share the cores out. Where two sessions each ask for all of them, a barrier of OpenMP waits for
    the scheduler: a step of 10 ms was seen to take 2 s, and a process to make no progress in 10 minutes."""
    name, count = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    if name and count and hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))[int(name.removeprefix("gw")) :: int(count)]
        if mine:
            os.sched_setaffinity(0, mine)


# Files whose tests share long sessions: first, or one worker ends a quarter of an hour after the other. In the order
# of what they took; `pytest --durations=30` says what that is now.
LONGEST = (
    "tests/museum/",
    "tests/conformance/ops/",
    "tests/session/",
    "tests/conformance/stacks/",
    "tests/bridge/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((i for i, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test draws the same numbers alone, in the whole run and tomorrow. Where it never imports torch, nothing is
    imported for it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def detente(home: Path) -> Run:
    """Run the command line as a user does; keyword arguments become environment variables."""

    def run(*arguments: str, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "detente", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=ROOT,
            env={**os.environ, **environment},
            check=False,
        )

    return run
