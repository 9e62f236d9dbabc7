"""The spool: every finished process is on the disk before the next one starts. Standard library only.

A session is measured on machines where nothing but the core is installed, and must outlive a killed parent,
a full disk and a broken database. So this file is written first, line by line with fsync, and is kept: the
database is an index that can be made again from it.

What stands in it was measured: before every line what was written before it is read again, since a row's own process
could write there, too. Behind the last line nobody looks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from detente.records.codec import from_json, shown
from detente.records.fault import StoreFault
from detente.records.limits import LONGEST_LINE, check_record, wrong_id
from detente.records.session import Process, Session
from detente.store.lines import (
    SESSION,
    Amendment,
    Parsed,
    amendment_line,
    head_line,
    parse_lines,
    process_line,
)

# The largest session of docs/results is 1.1 MB; a file this large takes half a minute to judge.
LARGEST_FILE = 64 * 2**20

# What an operating system says when nothing more fits, or when writing is not allowed at all.
_ELSEWHERE = "(DETENTE_HOME moves the store)"
_HINTS = {
    errno.ENOSPC: f"the disk is full: free some space, or choose another folder {_ELSEWHERE}",
    errno.EDQUOT: f"your disk quota is used up: free some space, or choose another folder {_ELSEWHERE}",
    errno.EFBIG: f"the file may not grow further: raise the limit, or choose another folder {_ELSEWHERE}",
    errno.EACCES: f"choose a folder that you may write to {_ELSEWHERE}",
    errno.EPERM: f"choose a folder that you may write to {_ELSEWHERE}",
    errno.EROFS: f"the file system is read-only: choose another folder {_ELSEWHERE}",
    errno.ENOENT: f"its folder is not there: make it, or choose another one {_ELSEWHERE}",
    errno.ENOTDIR: f"a file stands where a folder is needed: choose another folder {_ELSEWHERE}",
    errno.EEXIST: f"a file stands where a folder is needed: choose another folder {_ELSEWHERE}",
}


def disk_fault(what: str, path: Path, error: OSError) -> StoreFault:
    """An OSError as the one line that a user reads: what was being done, where, why it failed, what to do."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return StoreFault(f"cannot {what} {path}: {why}", _HINTS.get(error.errno or 0, ""))


class Spool:
    """One session's file, open for appending and locked against a second writer. ``torn``: what was wrong with a last
    line that was cut off when the file was opened again."""

    def __init__(self, path: Path, file: BinaryIO, length: int) -> None:
        self.path, self._file, self._length = path, file, length
        self._written = hashlib.sha256()  # what stands in the file
        self.torn = ""

    @classmethod
    def create(cls, folder: Path | str, session: Session) -> Spool:
        """Begin ``folder/ID.jsonl`` with the head (and the processes, where there are some already).

        Raises StoreFault when the folder cannot be made or written, the disk is full, or the session is
        there.
        """
        if why := wrong_id(session.id):
            raise StoreFault(f"{shown(session.id)} cannot name a session", why)
        path = Path(folder) / f"{session.id}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_fault("make the folder", path.parent, error) from error
        try:
            file = open(path, "x+b", buffering=0)  # noqa: SIM115 - the spool owns it until close
        except FileExistsError:
            raise StoreFault(
                f"{path} is there already", "a session's id must be new; --resume continues one"
            ) from None
        except OSError as error:
            raise disk_fault("write", path, error) from error
        spool = cls(path, file, 0)
        try:
            spool._lock()
            spool._write(head_line(session))
            for process in session.processes:
                spool.append(process)
            _sync_folder(path.parent)
        except BaseException:
            # Without its head the file would be read as a broken session.
            spool.close()
            path.unlink(missing_ok=True)
            raise
        return spool

    @classmethod
    def open(cls, path: Path | str) -> tuple[Spool, Session]:
        """Continue a spool: its session so far, and the spool at its end. A torn last line is cut off first.

        Raises StoreFault when the file cannot be read or written, is no session, or another process writes
        to it.
        """
        path = Path(path)
        try:
            file = open(path, "r+b", buffering=0)  # noqa: SIM115 - the spool owns it until close
        except OSError as error:
            raise disk_fault("continue", path, error) from error
        spool = cls(path, file, 0)
        try:
            spool._lock()
            lines = file.readlines()
            parsed = parse_lines(lines, str(path))
            spool._length, spool.torn = parsed.length, parsed.torn
            whole = b"".join(lines)[: spool._length]
            spool._written.update(whole)
            spool._cut()
            if not whole.endswith(b"\n"):
                spool._write(b"\n")
        except OSError as error:
            spool.close()
            raise disk_fault("continue", path, error) from error
        except BaseException:
            spool.close()
            raise
        return spool, parsed.session

    def append(self, process: Process) -> None:
        """Write one finished process; it is on the disk when this returns. Raises StoreFault when it cannot
        be: the file then still holds everything before it, whole, and append may be tried again."""
        self._write(process_line(process))

    def amend(
        self,
        *,
        ended: float | None = None,
        note: str | None = None,
        skipped: dict[str, str] | None = None,
        rested: dict[str, str] | None = None,
        looked: int = 0,
    ) -> None:
        """Change the head of a session that has begun: its end, its note, cells that turned out to be
        skipped, rows that let others go first, once more that its words can be read."""
        self._write(amendment_line(Amendment(ended, note, skipped or {}, rested or {}, looked)))

    def close(self) -> None:
        """Give the file and its lock back. The file stays."""
        self._file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        try:
            self._check()
            self._cut()
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # Half a line must not stand before a later whole one. If even this fails, the next _write cuts
            # it.
            with contextlib.suppress(OSError):
                self._cut()
            raise disk_fault("write to", self.path, error) from error
        self._length += len(line)
        self._written.update(line)

    def _check(self) -> None:
        """Raises StoreFault where the file is another one than was written."""
        found, left = hashlib.sha256(), self._length
        self._file.seek(0)
        while left and (part := self._file.read(min(left, 1 << 20))):
            found.update(part)
            left -= len(part)
        here = os.fstat(self._file.fileno())
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (here.st_dev, here.st_ino):
            what = "was taken away, or another file put in its place,"
        elif found.digest() != self._written.digest():
            what = "was changed"
        else:
            return
        raise StoreFault(
            f"{self.path} {what} while its session ran: what is in it was not measured by this session",
            "a row's own process can do that: read its stack's file; nothing that was written here is to be believed",
        )

    def _cut(self) -> None:
        self._file.truncate(self._length)
        self._file.seek(self._length)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreFault(
                f"another process is writing {self.path}", "wait until that session ends"
            ) from None
        except OSError:
            # Some network file systems have no locks; the session's id is still its own.
            pass


def read_spool(path: Path | str) -> Session:
    """The session in a spool or an exported file; see ``parse_spool``, which also tells what was torn."""
    return parse_spool(path).session


def parse_spool(path: Path | str, most: int | None = None) -> Parsed:
    """The session in a spool or an exported file, also while it is being written and after a crash: a torn last line
    is left out, and told. ``most``: bytes that the file may have; a stranger's is not read without such a limit.

    Raises StoreFault when the file cannot be read, is too large or is no session.
    """
    path = Path(path)
    with _opened(path, most) as file:
        try:
            return parse_lines(_limited(file, path, most), str(path))
        except OSError as error:
            raise disk_fault("read", path, error) from error


def read_head(path: Path) -> Session:
    """The first line of a spool alone, as it stood when the session began. Raises StoreFault."""
    with _opened(path, None) as file:
        try:
            data = json.loads(file.readline(LONGEST_LINE))
            if not isinstance(data, dict) or data.get("schema") != SESSION:
                raise StoreFault(f"{path} does not begin with a session")
            head = from_json(Session, data)
            check_record(head, "Session")
        except OSError as error:
            raise disk_fault("read", path, error) from error
        except (ValueError, RecursionError) as error:
            raise StoreFault(f"{path}, line 1: {str(error) or type(error).__name__}") from None
        return head


@contextlib.contextmanager
def _opened(path: Path, most: int | None) -> Iterator[BinaryIO]:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        hint = "look at the path; `detente sessions list` lists what is stored"
        raise StoreFault(f"there is no file {path}", hint) from None
    except IsADirectoryError:
        raise StoreFault(f"{path} is a folder", "name the session's .jsonl file") from None
    except (OSError, ValueError) as error:
        fault = error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
        raise disk_fault("read", path, fault) from error
    with file:
        found = os.fstat(file.fileno())
        # A pipe may bring a session; a device brings zeros without end.
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            raise StoreFault(f"{path} is not a file", "name the session's .jsonl file")
        if most is not None and found.st_size > most:
            raise _too_large(path, most, f"{found.st_size / 2**20:.3g} MiB")
        yield file


def _limited(file: BinaryIO, path: Path, most: int | None) -> Iterator[bytes]:
    """Line by line, none of them read further than the longest that can be sound."""
    total = 0
    while line := file.readline(LONGEST_LINE + 1):
        total += len(line)
        if most is not None and total > most:
            raise _too_large(path, most)
        yield line


def _too_large(path: Path, most: int, size: str = "more") -> StoreFault:
    return StoreFault(
        f"{path} is too large: {size}, and {most / 2**20:.3g} MiB are read of a file from elsewhere",
        "`detente import --max-size 500M` reads a larger one, if you know where it comes from",
    )


def _sync_folder(folder: Path) -> None:
    # A new file's name is durable only when its folder is.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
