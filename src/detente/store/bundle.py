"""A session with its captured programs in one file: a .zip of ``session.jsonl`` and ``artefacts/SHA-256``.

It comes from strangers: names, sizes and hashes are checked before anything of it is used, and nothing in it names the
place where it goes. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from detente.records.fault import StoreFault
from detente.records.session import Session
from detente.store.artefacts import Artefacts
from detente.store.lines import session_lines
from detente.store.spool import disk_fault
from detente.store.whole_file import whole_file

SESSION, FOLDER = "session.jsonl", "artefacts/"
# What a bundle may hold, unpacked: a few bytes of .zip can claim any size.
LARGEST, LARGEST_SESSION = 4 << 30, 256 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Written:
    """``programs`` of ``bytes`` in all are in it; ``absent`` are named by the session and no longer here."""

    programs: int
    bytes: int
    absent: int


def named_by(session: Session) -> tuple[str, ...]:
    """The SHA-256 of every program that a session's evidence names, each once, in the order in which they came."""
    return tuple(dict.fromkeys(p.sha256 for process in session.processes for p in process.evidence.programs))


def write_bundle(session: Session, artefacts: Artefacts, file: Path) -> Written:
    """Write the session and what is here of its programs, the same bytes each time. Raises StoreFault when the disk
    refuses, or a program is no longer what its name says."""
    size = programs = absent = 0
    with whole_file(file) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        with bundle.open(zipfile.ZipInfo(SESSION), "w", force_zip64=True) as lines:
            for line in session_lines(session):
                lines.write(line)
        for name in named_by(session):
            if not artefacts.path(name).is_file():
                absent += 1
                continue
            data = artefacts.read(name)
            bundle.writestr(zipfile.ZipInfo(FOLDER + name), data, zipfile.ZIP_DEFLATED)
            programs, size = programs + 1, size + len(data)
    return Written(programs, size, absent)


@dataclass(frozen=True)
class Bundle:
    """``session_file`` holds the session's lines, for who reads such files; ``programs`` are the checked SHA-256."""

    session_file: Path
    programs: tuple[str, ...] = ()
    _bundle: zipfile.ZipFile | None = None

    def keep(self, session: Session, artefacts: Artefacts) -> int:
        """Store the programs that ``session`` names; how many those are. Raises StoreFault when the disk refuses."""
        wanted = set(named_by(session)) & set(self.programs)
        for name in wanted:
            assert self._bundle is not None
            artefacts.add(self._bundle.read(FOLDER + name))
        return len(wanted)


@contextlib.contextmanager
def open_bundle(file: Path, most: int = LARGEST) -> Iterator[Bundle]:
    """A bundle, checked; or a file of any other kind as it is, with no program.

    Raises StoreFault when a bundle holds another name, a name twice, more than ``most`` bytes, or bytes that are not
    what their name says: then nothing of it is used.
    """
    if not _is_zip(file):
        yield Bundle(file)
        return
    with contextlib.ExitStack() as stack:
        try:
            bundle = stack.enter_context(zipfile.ZipFile(file))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="detente-import-")))
            programs = _checked_names(file, bundle, most)
            for name in programs:
                if _digest(bundle, FOLDER + name) != name:
                    raise _refused(file, f"{FOLDER}{name} is damaged: its bytes do not have that hash")
            # The name of the file, so that what is wrong with the session is said of it.
            session_file = folder / f"{file.stem}.jsonl"
            with bundle.open(SESSION) as lines, session_file.open("wb") as out:
                while data := lines.read(_CHUNK):
                    out.write(data)
        except OSError as error:
            raise disk_fault("read", file, error) from error
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise _refused(file, f"it is no sound .zip: {error}") from None
        yield Bundle(session_file, programs, bundle)


def _is_zip(file: Path) -> bool:
    if not file.is_file():
        return False  # a pipe can be read once, and a device never ends: neither is looked into
    try:
        with open(file, "rb") as found:
            return found.read(2) == b"PK"
    except OSError:
        return False  # whoever reads the file says why it cannot be read


def _checked_names(file: Path, bundle: zipfile.ZipFile, most: int) -> tuple[str, ...]:
    entries = bundle.infolist()
    if [e.filename for e in entries].count(SESSION) != 1:
        raise _refused(file, f"it does not hold one {SESSION}")
    programs = []
    for entry in entries:
        if entry.filename == SESSION:
            continue
        name = entry.filename.removeprefix(FOLDER)
        if FOLDER + name != entry.filename or not re.fullmatch(r"[0-9a-f]{64}", name):
            raise _refused(file, f"it holds {entry.filename[:80]!r}, which is no program's name")
        if name in programs:
            raise _refused(file, f"it holds {entry.filename} twice")
        programs.append(name)
    size = sum(e.file_size for e in entries)
    if size > most:
        raise _refused(file, f"it says that it unpacks to {size:,} bytes, and {most:,} are allowed")
    lines = bundle.getinfo(SESSION).file_size
    if lines > LARGEST_SESSION:
        raise _refused(file, f"its session has {lines:,} bytes, and {LARGEST_SESSION:,} are allowed")
    return tuple(programs)


def _digest(bundle: zipfile.ZipFile, name: str) -> str:
    # Never more than the size that was checked: zipfile stops there, and the checksum then fails.
    digest = hashlib.sha256()
    with bundle.open(name) as found:
        while data := found.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _refused(file: Path, why: str) -> StoreFault:
    return StoreFault(
        f"{file} is not taken: {why}", "`detente export --artefacts` writes such files; export it again"
    )
