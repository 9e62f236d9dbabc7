"""What a user's file may import beside libraries: its neighbours, and what lies in the current folder."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


def let_import(file: Path) -> None:
    """Behind everything else: a neighbour called random.py, or a torch.py that somebody left in the current folder,
    must not take the place of a library."""
    folders = [file.resolve().parent]
    with contextlib.suppress(FileNotFoundError):  # somebody removed it
        folders.append(Path.cwd())
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.append(folder)
