"""What a user is told when something is wrong, and the exit code that goes with it."""

from __future__ import annotations

from typing import ClassVar


class Fault(Exception):
    """Base of every error that a user can cause or meet: what happened, with which values, and what to do next.

    ``exit_code`` follows docs/exit-codes.md: 1 a named cell is void or failed, 2 usage, 3 this machine cannot
    run it, 4 our bug.
    """

    code: ClassVar[str] = "fault"
    exit_code: ClassVar[int] = 4

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class UsageFault(Fault):
    """The command line, a file or a name is wrong."""

    code, exit_code = "usage", 2


class MachineFault(Fault):
    """This machine cannot run it: a missing package, an unwritable folder, a full disk, a lock that is held."""

    code, exit_code = "machine", 3


class StoreFault(MachineFault):
    """The database or a spool cannot be read or written."""

    code = "store"


class CellFault(Fault):
    """A cell that was asked for by name is VOID or failed."""

    code, exit_code = "cell", 1
