"""What a timing process handed out, in a folder, until a replay has taken it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detente.worker.tensorfile import map_tensors, write_tensors
from detente.worker.window import Stretch

_HEAD = "handed.json"


@dataclass(frozen=True)
class Handed:
    """``stretch`` and the names of its trainable parameters, or one fresh ``batch`` and what its step returned."""

    stretch: Stretch | None
    parameters: frozenset[str]
    batch: Mapping[str, np.ndarray]
    returned: Mapping[str, np.ndarray]


def keep_stretch(folder: Path, stretch: Stretch, parameters: frozenset[str]) -> None:
    """The states, then the head that makes them exist."""
    write_tensors(folder / "before.safetensors", stretch.before)
    write_tensors(folder / "after.safetensors", stretch.after)
    head = {"first": stretch.first, "steps": stretch.steps, "batches": stretch.batches}
    (folder / _HEAD).write_text(json.dumps({**head, "parameters": sorted(parameters)}))


def keep_returned(folder: Path, batch: Mapping[str, np.ndarray], returned: Mapping[str, np.ndarray]) -> None:
    """A fresh batch and what its step returned, ``loss`` among it."""
    write_tensors(folder / "batch.safetensors", batch)
    write_tensors(folder / "returned.safetensors", returned)
    (folder / _HEAD).write_text(json.dumps({}))


def map_handed(folder: Path) -> Handed | None:
    """What is there; None when the process ended before it handed anything out."""
    if not (folder / _HEAD).exists():
        return None
    head = json.loads((folder / _HEAD).read_text())
    if not head:
        return Handed(
            None,
            frozenset(),
            map_tensors(folder / "batch.safetensors"),
            map_tensors(folder / "returned.safetensors"),
        )
    before, after = map_tensors(folder / "before.safetensors"), map_tensors(folder / "after.safetensors")
    stretch = Stretch(head["first"], head["steps"], head["batches"], before, after)
    return Handed(stretch, frozenset(head["parameters"]), {}, {})
