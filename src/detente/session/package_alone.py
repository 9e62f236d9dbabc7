"""Our package alone on a path: what a foreign environment may import of the environment that measures.

The folder above the package is a checkout's ``src``, but from a wheel it is the whole site-packages: on a foreign
environment's path it would replace that environment's own torch, numpy or jax by ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from detente.records.fault import MachineFault
from detente.records.folders import cache_folder

PACKAGE = Path(__file__).resolve().parent.parent


def package_alone() -> Path:
    """A folder of ours that holds a link to this package and nothing else, made if need be.

    Raises MachineFault when it cannot be made, or belongs to somebody else or may be written by others: what lies there
    is run.
    """
    digest = hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]
    folder = cache_folder() / "package" / digest
    link = folder / PACKAGE.name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise MachineFault(
                f"{folder} belongs to another user, or others may write it",
                "remove it: detente makes it again, for you alone",
            )
        for stranger in folder.iterdir():
            if stranger.name != PACKAGE.name and not stranger.name.startswith("."):
                raise MachineFault(
                    f"{stranger} is not ours, and a foreign environment would import it",
                    f"remove {folder}: detente makes it again",
                )
        if not (link.is_symlink() and link.readlink() == PACKAGE):
            # Under another name first: two sessions may do this at once, and a worker may be reading it.
            draft = folder / f".{secrets.token_hex(4)}"
            draft.symlink_to(PACKAGE, target_is_directory=True)
            try:
                os.replace(draft, link)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    draft.unlink()
    except OSError as error:
        raise MachineFault(
            f"cannot link the package at {link}: {error.strerror}",
            "set XDG_CACHE_HOME to a folder that you may write and that can hold links",
        ) from error
    return folder
