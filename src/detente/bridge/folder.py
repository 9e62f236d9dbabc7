"""Where programs, certificates, tuned choices and built kernels are kept between processes, and whether a folder may
hold them: what is loaded from it runs as code of the user's."""

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from pathlib import Path

VARIABLE = "DETENTE_BRIDGE_CACHE"


def users() -> Path:
    """``detente`` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "detente"


def folder() -> Path | None:
    """``$DETENTE_BRIDGE_CACHE`` (``off`` for none), else ``bridge`` in the user's."""
    told = os.environ.get(VARIABLE)
    if told is not None:
        return None if told in ("", "off") else Path(told)
    return users() / "bridge"


def trusted(place: Path) -> bool:
    """Make the cache folder with no access for others, and say whether it can be used. One that belongs to another
    user, or that others may write to, is left alone; a line on standard error says so, once, and how to mend it.
    False too, in silence, where no folder can be made: a full or read-only disk only costs the cache."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        wrong = _wrong(place.stat())
    except OSError:
        return False
    if wrong:
        _say(str(place), wrong)
    return not wrong


def _wrong(found: os.stat_result) -> str:
    """Why nobody should load a pickle from there; empty when that is fine."""
    if not hasattr(os, "geteuid"):
        return ""
    if not stat.S_ISDIR(found.st_mode):
        return "is no folder"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


@cache
def _say(place: str, wrong: str) -> None:
    print(
        f"detente: the cache folder {place} {wrong}: going on without the cache; "
        "remove it, or name another in DETENTE_BRIDGE_CACHE",
        file=sys.stderr,
    )
