"""Captured programs by the hash of their content, as workers leave them and imports bring them. Stdlib only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from detente.records.fault import StoreFault
from detente.store.spool import disk_fault


def artefacts_of(data: Path) -> Artefacts:
    """Those of the data folder: where a session's workers leave the programs that they capture."""
    return Artefacts(data / "artefacts")


class Artefacts:
    """``folder/ab/abcdef…``: the name is the SHA-256 of the bytes, so the same program is kept once."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def add(self, data: bytes) -> str:
        """Keep these bytes; return their SHA-256. They appear under their name only when they are whole.
        Raises StoreFault when they cannot be written."""
        name = hashlib.sha256(data).hexdigest()
        path = self.path(name)
        if path.is_file() and path.stat().st_size == len(data):
            return name
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
                temporary = file.name
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            raise disk_fault("write", path, error) from error
        return name

    def read(self, name: str) -> bytes:
        """The bytes of that hash. Raises StoreFault when they are not there, or are no longer what they
        were."""
        path = self.path(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise disk_fault("read", path, error) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise StoreFault(
                f"{path} is damaged: its bytes no longer have the hash that names it", "capture it again"
            )
        return data

    def path(self, name: str) -> Path:
        """Where the artefact of that hash lies. Raises StoreFault when ``name`` is not a SHA-256."""
        if not re.fullmatch(r"[0-9a-f]{64}", name):
            raise StoreFault(
                f"{name!r} is not the SHA-256 of an artefact", "a captured program's record names it"
            )
        return self.folder / name[:2] / name
