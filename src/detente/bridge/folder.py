"""Where programs, certificates, tuned choices and built kernels are kept between processes, and whether a folder may
hold them: what is loaded from it runs as code of the user's."""

from __future__ import annotations

import os
import stat
import sys
import threading
from functools import cache
from pathlib import Path

VARIABLE = "DETENTE_BRIDGE_CACHE"
_OFF = frozenset({"", "off", "none", "no", "false", "0"})


def users() -> Path | None:
    """``detente`` in the user's cache folder; None where they have no home (a container that runs under a number)."""
    return _at(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "detente")


def folder() -> Path | None:
    """``$DETENTE_BRIDGE_CACHE`` (``off`` for none), else ``bridge`` in the user's; None too where that has no home, and
    a line on standard error says so, once."""
    told = os.environ.get(VARIABLE)
    if told is not None and told.strip().lower() in _OFF:
        return None
    place = users() if told is None else _at(told)
    if place is None:
        _say("this user has no home folder", f"name a folder in {VARIABLE}, or say off")
        return None
    return place / "bridge" if told is None else place


def _at(told: str, inside: str = "") -> Path | None:
    try:
        return Path(told).expanduser().absolute() / inside
    except RuntimeError:  # no HOME, and no user of that name
        return None


def trusted(place: Path) -> bool:
    """Make the cache folder with no access for others, and say whether it can be used. One that belongs to another
    user, or that others may write to, is left alone; a line on standard error says so, once, and how to mend it.
    False too, in silence, where no folder can be made: what would be kept in it says what that costs."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        wrong = _wrong(place.stat())
    except OSError:
        return False
    if wrong:
        _say(f"the cache folder {place} {wrong}", f"remove it, or name another in {VARIABLE}")
    return not wrong


def there(place: Path) -> bool:
    """Whether there is such a folder already, and it can be used."""
    try:
        found = place.is_dir()
    except OSError:  # nobody may look
        return False
    return found and trusted(place)


def write(place: Path, name: str, data: bytes) -> None:
    """A file for its owner alone, whatever the umask says. It appears whole or not at all, and nothing is left of one
    that did not fit. Raises OSError."""
    fresh = place / f".{name}.{os.getpid()}.{threading.get_ident()}"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        fresh.replace(place / name)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


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
def _say(wrong: str, mend: str) -> None:
    print(f"detente: {wrong}: going on without the cache; {mend}", file=sys.stderr)
