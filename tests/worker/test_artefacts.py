"""Captured programs lie under the hash of their content, and one that was edited is nobody's program any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from detente.stacks.protocol import Capture, Unavailable
from detente.worker.artefacts import keep_programs, need_unchanged


def kept(folder: Path) -> Path:
    (program,) = keep_programs(folder, [Capture("hlo", "step", b"a program")])
    return folder / program.path


def test_what_was_captured_is_taken(tmp_path) -> None:
    need_unchanged([kept(tmp_path)])


def test_an_edited_program_is_refused(tmp_path) -> None:
    file = kept(tmp_path)
    file.write_bytes(b"another program")
    with pytest.raises(Unavailable, match="was changed since it was captured"):
        need_unchanged([file])


def test_a_program_that_is_gone_is_refused(tmp_path) -> None:
    file = kept(tmp_path)
    file.unlink()
    with pytest.raises(Unavailable, match="cannot be read: No such file"):
        need_unchanged([file])
