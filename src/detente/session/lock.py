"""The machine-wide lock: two sessions that time at once would measure each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from detente.records.fault import MachineFault


def lock_path() -> Path:
    """One file for every user of the machine: the lock is about the processor, not about a folder."""
    return Path(os.environ.get("DETENTE_LOCK") or Path(tempfile.gettempdir()) / "detente-timing.lock")


class MachineLock:
    """Held while a session times. Waits for another session up to ``wait_s`` seconds, telling ``tell`` once whom for;
    then raises MachineFault. The operating system drops it when the holder dies, however it dies."""

    def __init__(self, wait_s: float, tell: Callable[[str], None], stop: Callable[[], bool]) -> None:
        self._wait_s, self._tell, self._stop = wait_s, tell, stop
        self._fd = -1

    def __enter__(self) -> MachineLock:
        path = lock_path()
        try:
            self._fd, writable = _opened(path)
        except OSError as error:
            raise MachineFault(
                f"cannot open the timing lock {path}: {os.strerror(error.errno or 0)}",
                "set DETENTE_LOCK to a file that you may write",
            ) from None
        deadline, told = time.monotonic() + self._wait_s, False
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(self._fd, 64, 0).decode(errors="replace").strip() or "unknown"
                if not told:
                    self._tell(
                        f"another session (process {holder}) is timing on this machine; waiting for it "
                        f"(the lock is {path}; DETENTE_LOCK names another)"
                    )
                    told = True
                if self._stop() or time.monotonic() > deadline:
                    os.close(self._fd)
                    raise MachineFault(
                        f"another session (process {holder}) holds the timing lock {path}",
                        "two sessions at once would measure each other: wait for it, or stop it",
                    ) from None
                time.sleep(0.2)
        if writable:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


def _opened(path: Path) -> tuple[int, bool]:
    """The lock file, and whether this user may write in it. One that is there is opened without O_CREAT: in a folder
    that everybody may write to, as /tmp, the kernel refuses it for a file of another user's (fs.protected_regular), and
    the second user of a machine could not measure. To hold a lock, reading is enough. Never through a link that
    somebody laid there: what it leads to would be written over."""
    link = 0 if os.environ.get("DETENTE_LOCK") else os.O_NOFOLLOW
    while True:
        for flags in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                return os.open(path, flags | link), flags == os.O_RDWR
        there = path.exists()
        old = os.umask(0)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | link, 0o666), True
        except PermissionError:
            if there or not path.exists():
                raise
            # Another user's session made it just now.
        finally:
            os.umask(old)
