"""The virtual environment of each stack that cannot live in ours: add, list, remove, record."""

from __future__ import annotations

from pathlib import Path

from detente.records.folders import data_folder


def environment_folder(name: str) -> Path:
    """Where the environment ``name`` lies, made or not."""
    return data_folder() / "environments" / name


def python_of(name: str) -> Path | None:
    """The interpreter of an environment that is whole, else None. The record is written last, so a half-made
    environment has none."""
    folder = environment_folder(name)
    python = folder / "bin" / "python"
    return python if python.exists() and (folder / "record.json").exists() else None
