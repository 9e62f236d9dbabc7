"""Find a session by name: in the database, among the spools, or as a file."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from detente.cli.text import say
from detente.records.fault import StoreFault, UsageFault
from detente.records.folders import data_folder
from detente.records.session import Session
from detente.store.artefacts import Artefacts, artefacts_of
from detente.store.bundle import open_bundle
from detente.store.kept import mend, read_kept
from detente.store.spool import LARGEST_FILE, parse_spool, read_head


def find_session(name: str) -> Session:
    """``latest``, the beginning of a session's id, or the path of an exported file.

    The spool is read before the database: it is the truth, and it is there when the database is not. What is torn or
    damaged in it is said on standard error. A file from anywhere but the store is taken as imported. Raises UsageFault
    when nothing or more than one thing is meant.
    """
    if name.endswith((".jsonl", ".zip")) or "/" in name:
        with open_bundle(Path(name)) as bundle:
            return _from_file(bundle.session_file)
    spools = _spools(name)
    if len(spools) == 1:
        kept = read_kept(spools[0], data_folder())
        if kept.note:
            say(f"note: {kept.note}", error=True)
        return kept.session
    if len(spools) > 1:
        raise _ambiguous(name, spools)
    if importlib.util.find_spec("sqlalchemy") is not None and (data_folder() / "detente.db").exists():
        from detente.store.sessions import open_store

        with open_store(data_folder()) as store:
            return store.read_session(name)
    raise StoreFault(f"there is no session {name!r} in {_folder()}", "`detente compare gpt2` makes one")


def session_and_programs(name: str, until: contextlib.ExitStack) -> tuple[Session, Path]:
    """``find_session``, and the folder where its captured programs lie: the store's, or one that a bundle is unpacked
    into as long as ``until`` lasts."""
    if not name.endswith(".zip"):
        return find_session(name), artefacts_of(data_folder()).folder
    bundle = until.enter_context(open_bundle(Path(name)))
    session = _from_file(bundle.session_file)
    folder = Path(until.enter_context(tempfile.TemporaryDirectory(prefix="detente-programs-")))
    bundle.keep(session, Artefacts(folder))
    return session, folder


def find_spool(name: str) -> Path:
    """The spool that ``--resume`` continues: ``latest`` or the beginning of a session's id. One that is damaged is made
    whole from the database first, where that has a copy. Raises UsageFault, also for an imported session: what others
    measured cannot be continued here."""
    spools = _spools(name)
    if len(spools) > 1:
        raise _ambiguous(name, spools)
    if not spools:
        raise UsageFault(f"there is no session {name!r} in {_folder()}", "`detente sessions list` lists them")
    if note := mend(spools[0], data_folder()):
        say(f"note: {note}", error=True)
    if read_head(spools[0]).imported is not None:
        raise UsageFault(
            f"session {spools[0].stem} was imported, not measured here: it cannot be continued",
            "leave --resume out to measure anew",
        )
    return spools[0]


def _from_file(path: Path) -> Session:
    own = path.parent.resolve() == _folder().resolve()
    parsed = parse_spool(path, None if own else LARGEST_FILE)
    if parsed.torn:
        say(f"note: {parsed.torn}; that line is left out", error=True)
    if own or parsed.session.imported is not None:
        return parsed.session
    return replace(parsed.session, imported=time.time())


def _folder() -> Path:
    return data_folder() / "sessions"


def _spools(name: str) -> list[Path]:
    if not name.strip():
        # Of a script whose variable is empty. Every id begins so, and a session that is alone would be taken.
        raise UsageFault(
            f"{name!r} names no session", "leave it out for the latest; `detente sessions` lists them"
        )
    everything = sorted(_folder().glob("*.jsonl"))
    if name != "latest":
        exact = [p for p in everything if p.stem == name]
        return exact or [p for p in everything if p.stem.startswith(name)]
    # A stranger may have named his anything, and counts only where nothing was measured here.
    return _latest(everything) or everything[-1:]


# Ids begin with the time of a clock on the wall, which is put back once a year, and lies elsewhere for whoever travels
# or measures in a container: two that stand side by side may be so far apart, and no further.
_ZONES_S = 26 * 3600.0


def _latest(spools: list[Path]) -> list[Path]:
    """Of those that were measured here, names in order, the one that began last; none where there is none."""
    best: tuple[float, Path] | None = None
    for spool in reversed(spools):
        try:
            head = read_head(spool)
            if head.imported is not None:
                continue
        except StoreFault:
            if best is None:
                return [spool]  # damaged, and so ours: import lets nothing in that cannot be read
            continue
        if best is None or head.started > best[0]:
            best = head.started, spool
        elif head.started < best[0] - _ZONES_S:
            break
    return [best[1]] if best else []


def _ambiguous(name: str, spools: list[Path]) -> UsageFault:
    return UsageFault(
        f"{len(spools)} sessions begin with {name!r}",
        "give more of the id: " + ", ".join(p.stem for p in spools[-5:]),
    )
