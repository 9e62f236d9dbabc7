"""Captured programs go to files that are named by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from detente.records.program import Program
from detente.stacks.protocol import Capture, Unavailable


def need_unchanged(files: Iterable[Path]) -> None:
    """Raises Unavailable for a captured file that is gone, or no longer what it is named by: a program that somebody
    edited is no stack's."""
    for file in files:
        try:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise Unavailable(
                f"the captured program {file.name[:12]} cannot be read: {error.strerror}"
            ) from error
        if digest != file.name:
            raise Unavailable(f"the captured program {file.name[:12]} was changed since it was captured")


def keep_programs(folder: Path, captures: Iterable[Capture]) -> tuple[Program, ...]:
    """Write each capture once and describe it."""
    kept = []
    for capture in captures:
        digest = hashlib.sha256(capture.data).hexdigest()
        path = folder / digest[:2] / digest
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(capture.data)
        kept.append(
            Program(
                capture.form,
                capture.name,
                digest,
                f"{digest[:2]}/{digest}",
                len(capture.data),
                dict(capture.facts),
            )
        )
    return tuple(kept)
