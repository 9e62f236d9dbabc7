"""Standard output and the disks below it, when they are closed, full or gone."""

from __future__ import annotations

import errno
import io
import os
import sys

# What an operating system says of a disk or a folder, none of which is a bug of ours.
_MACHINE = {
    errno.ENOSPC: "the disk is full: free some space and try again",
    errno.EDQUOT: "your disk quota is used up: free some space and try again",
    errno.EFBIG: "the file may not grow further: raise the limit (`ulimit -f`) and try again",
    errno.EACCES: "choose a folder that you may write to (DETENTE_HOME moves all of them)",
    errno.EPERM: "choose a folder that you may write to (DETENTE_HOME moves all of them)",
    errno.EROFS: "the file system is read-only: choose another folder (DETENTE_HOME moves all of them)",
    errno.EIO: "the disk is failing: look at it before anything else",
    errno.EMFILE: "too many files are open: raise the limit (`ulimit -n`) and try again",
    errno.ENFILE: "too many files are open on this machine: end something and try again",
    errno.ENOMEM: "memory ran out: end something and try again",
    errno.ENOTDIR: "a file stands where a folder is needed (DETENTE_HOME moves all of them)",
}
_KEPT = "everything that finished is kept: `detente report` tells a session again, `detente compare --resume` goes on"


def require_output() -> None:
    """End with exit code 3 when standard output is closed: nothing could be told, and the first file that is opened
    would take its place. A closed standard error or input is replaced by nothing."""
    for number, mode in ((0, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, mode), number)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - it lives as long as the process
    if sys.stdout is None:
        print("detente: standard output is closed, so that nothing can be told", file=sys.stderr)
        print("         send it to a file or to /dev/null", file=sys.stderr)
        sys.exit(3)
    # A notebook, or a test that listens, puts an object without a buffer there.
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        # PYTHONUNBUFFERED: what could not be written would be gone, and nothing could tell which file had refused it.
        sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115


def is_lost_output(error: OSError) -> bool:
    """Whether this is about writing to standard output. The error does not say which file it means; but what could
    not be written is still in the buffer, and fails again."""
    if isinstance(error, BrokenPipeError):
        return True
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def lost_output(error: OSError, code: int) -> int:
    """Say that the output was lost, let nothing more be written there, and return the exit code: the command's own
    when the reader went away (`| head`), 3 when what was told did not fit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if isinstance(error, BrokenPipeError):
        # The reader has what it wanted: nothing is wrong, and nothing more can be said.
        return code
    why = os.strerror(error.errno) if error.errno else str(error)
    print(f"detente: standard output cannot be written: {why}", file=sys.stderr)
    print(f"         {_KEPT}", file=sys.stderr)
    return 3


def is_machine(error: OSError) -> bool:
    """Whether an error of the operating system is about this machine and not about our code."""
    return error.errno in _MACHINE


def machine_words(error: OSError) -> tuple[str, str]:
    """What happened, and what to do."""
    why = os.strerror(error.errno or 0)
    where = f" {error.filename}" if error.filename else ""
    return f"cannot write or read{where}: {why}", f"{_MACHINE[error.errno or 0]}\n{_KEPT}"
