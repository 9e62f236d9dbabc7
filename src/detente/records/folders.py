"""Where detente keeps things: the XDG folders, computed from the environment, nothing created.

``DETENTE_HOME`` moves everything below one folder (tests, and machines where the home folder is not writable).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def _folder(environ: Mapping[str, str], variable: str, fallback: str, part: str) -> Path:
    own = environ.get("DETENTE_HOME")
    if own:
        return Path(own) / part
    root = environ.get(variable)
    return (Path(root) if root else Path(environ.get("HOME", "~")).expanduser() / fallback) / "detente"


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Sessions, the database, artefacts, environments: nothing here can be made again for free."""
    return _folder(environ, "XDG_DATA_HOME", ".local/share", "data")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Prepared weights and references, proofs, compile caches: deleting it costs time, never results."""
    return _folder(environ, "XDG_CACHE_HOME", ".cache", "cache")


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Locks and the files that hold tracebacks."""
    return _folder(environ, "XDG_STATE_HOME", ".local/state", "state")
