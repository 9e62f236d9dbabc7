"""Where detente keeps things: the XDG folders, computed from the environment, nothing created.

``DETENTE_HOME`` moves everything below one folder (tests, and machines where the home folder is not writable).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from detente.records.fault import MachineFault


def _folder(environ: Mapping[str, str], variable: str, fallback: str, part: str) -> Path:
    own = environ.get("DETENTE_HOME")
    if own:
        # No shell has expanded what stands in an env file or in quotes.
        tilde = own == "~" or own.startswith("~/")
        return (_home(environ) / own[2:] if tilde else Path(own)) / part
    root = environ.get(variable, "")
    # "If an implementation encounters a relative path in any of these variables it should consider the path invalid and
    # ignore it" (XDG Base Directory Specification).
    if Path(root).is_absolute():
        return Path(root) / "detente"
    return _home(environ) / fallback / "detente"


def _home(environ: Mapping[str, str]) -> Path:
    """The user's home folder. An empty HOME is none: it would be the current folder. Raises MachineFault where nobody
    knows one: a user by number in a container has no entry among the system's."""
    home = environ.get("HOME", "")
    if home:
        return Path(home)
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise MachineFault(
            f"there is no folder to keep anything in: HOME is {'empty' if 'HOME' in environ else 'not set'}, and user "
            f"{os.getuid()} has no home folder here",
            "set DETENTE_HOME to a folder that you may write, or HOME",
        ) from None


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Sessions, the database, artefacts, environments: nothing here can be made again for free."""
    return _folder(environ, "XDG_DATA_HOME", ".local/share", "data")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Prepared weights and references, proofs, compile caches: deleting it costs time, never results."""
    return _folder(environ, "XDG_CACHE_HOME", ".cache", "cache")


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Locks and the files that hold tracebacks."""
    return _folder(environ, "XDG_STATE_HOME", ".local/state", "state")
