"""A file that appears when it is whole. Standard library only."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from detente.store.spool import disk_fault


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write here; the file takes its name at the end, and one of that name is replaced. After an error there is nothing
    new. Raises StoreFault for what the disk refuses."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as out:
            temporary = out.name
            yield out
            out.flush()
            os.fsync(out.fileno())
        # A temporary file is private; an exported one is as open as any file that the user makes.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        raise disk_fault("write", path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
