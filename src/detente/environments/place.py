"""Where environments lie, and what is written down about each."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detente.records.codec import SchemaError, dumps, from_json
from detente.records.folders import data_folder

RECORD = "detente-environment.json"
SCHEMA = "detente/environment/1"


@dataclass(frozen=True)
class EnvironmentRecord:
    """Written last, so that an environment without one is unfinished.

    made        seconds since the epoch
    python      version of its interpreter
    installer   ``pip 24.0`` or ``uv 0.9.2``
    requested   the recipe's pins
    installed   every distribution in it -> version
    bytes       on disk
    """

    name: str
    made: float
    python: str
    installer: str
    requested: tuple[str, ...]
    installed: dict[str, str] = field(default_factory=dict)
    bytes: int = 0


def environments_folder() -> Path:
    """Below the data folder: an environment costs minutes and gigabytes to make again."""
    return data_folder() / "environments"


def folder_of(name: str) -> Path:
    return environments_folder() / name


def interpreter(folder: Path) -> Path:
    """The environment's python, whether it is there or not."""
    return folder / "bin" / "python"


def read_record(folder: Path) -> EnvironmentRecord | None:
    """None when there is none, or when what is there is not one: such an environment is made again."""
    try:
        data: Any = json.loads((folder / RECORD).read_text())
        return from_json(EnvironmentRecord, data)
    except (OSError, ValueError, SchemaError):
        return None


def write_record(folder: Path, record: EnvironmentRecord) -> None:
    """At once or not at all."""
    draft = folder / f"{RECORD}.draft"
    draft.write_text(dumps(record, SCHEMA) + "\n")
    os.replace(draft, folder / RECORD)


def python_of(environment: str) -> Path | None:
    """The interpreter of a finished environment; None when it has not been made, or not to its end."""
    folder = folder_of(environment)
    python = interpreter(folder)
    return python if read_record(folder) is not None and os.access(python, os.X_OK) else None


def packages_of(environment: str) -> Path | None:
    """Where a finished environment's packages lie, for a process of another interpreter of the same version; None when
    it has not been made, or not to its end."""
    if python_of(environment) is None:
        return None
    found = sorted(folder_of(environment).glob("lib/python3.*/site-packages"))
    return found[-1] if found else None


def state_of(name: str, requested: tuple[str, ...]) -> str:
    """``absent``, ``unfinished``, ``other versions`` (made by a detente that pinned others) or ``installed``."""
    folder = folder_of(name)
    if not folder.exists():
        return "absent"
    record = read_record(folder)
    if record is None or not os.access(interpreter(folder), os.X_OK):
        return "unfinished"
    return "installed" if set(record.requested) == set(requested) else "other versions"
