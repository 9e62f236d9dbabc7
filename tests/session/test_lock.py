"""The lock of another user's session: taken where the kernel lets nobody make what is there."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from detente.records.fault import MachineFault
from detente.session import lock as module
from detente.session.lock import MachineLock

OPEN = os.open


def lock() -> MachineLock:
    return MachineLock(0.0, lambda text: None, lambda: False)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lock lies when nobody names one."""
    monkeypatch.delenv("DETENTE_LOCK", raising=False)
    monkeypatch.setattr(module, "lock_path", lambda: tmp_path / "lock")
    return tmp_path / "lock"


@pytest.fixture
def protected(monkeypatch: pytest.MonkeyPatch) -> None:
    """fs.protected_regular: O_CREAT of what is there, and another user's, is refused."""

    def opened(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT and os.path.exists(path):
            raise PermissionError(13, "Permission denied")
        return OPEN(path, flags, *mode)

    monkeypatch.setattr(os, "open", opened)


def test_the_second_user_of_a_machine_takes_it(path: Path, protected: None) -> None:
    path.write_text("12345678")
    with lock():
        assert path.read_text() == str(os.getpid())


def test_the_first_one_makes_it_for_everybody(path: Path) -> None:
    with lock():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_one_that_may_only_be_read_is_held_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("1")

    def opened(path: Any, flags: int, *mode: int) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied")
        return OPEN(path, flags, *mode)

    monkeypatch.setattr(os, "open", opened)
    with lock():
        held = OPEN(path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(held)
    assert path.read_text() == "1"


def test_made_by_another_between_looking_and_making(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            Path(path).write_text("2")
            raise PermissionError(13, "Permission denied")
        return OPEN(path, flags, *mode)

    monkeypatch.setattr(os, "open", opened)
    with lock():
        assert path.read_text() == str(os.getpid())


def test_one_that_may_not_be_read_is_a_fault_of_the_machine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("1")

    def opened(path: Any, flags: int, *mode: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(MachineFault, match="Permission denied"):
        lock().__enter__()


def test_what_a_link_leads_to_is_not_written_over(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path.symlink_to(precious)
    with pytest.raises(MachineFault, match="lock"):
        lock().__enter__()
    assert precious.read_text() == "mine"


def test_a_link_that_the_user_named_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "place")
    monkeypatch.setenv("DETENTE_LOCK", str(tmp_path / "link"))
    with lock():
        assert (tmp_path / "place").read_text() == str(os.getpid())
