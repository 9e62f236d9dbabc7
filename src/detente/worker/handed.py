"""What a timing process handed out, in a folder, until a replay has taken it again."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detente.worker.tensorfile import map_tensors, write_tensors
from detente.worker.window import Stretch

_HEAD = "handed.json"
# The parent's answer to the message that the window is over. Before it no process knows whether its window is taken
# again: a stack that could read that in its job file would be honest there alone.
_WANTED, _UNWANTED = "wanted", "unwanted"
_ANSWER_S = 20.0
# Of the memory that is available, the share that the states around a window's stretches may take.
_SHARE = 0.5


def answer(folder: Path, wanted: bool) -> None:
    """The parent's side: whether what was handed out is to be kept."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (_WANTED if wanted else _UNWANTED)).touch()


def is_wanted(folder: Path) -> bool:
    """The worker's side: waits for the answer, which is there as soon as the parent has read the message."""
    ends = time.monotonic() + _ANSWER_S
    while time.monotonic() < ends:
        if (folder / _WANTED).exists():
            return True
        if (folder / _UNWANTED).exists():
            return False
        time.sleep(0.005)
    return False


def can_hold(weights_bytes: int, states: int) -> bool:
    """Whether memory holds so many states of a model: its weights, and two moments of each. Counted from the prepared
    weights: what a stack says of its arrays is its own word."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    available = int(found.group(1)) * 1024 if found else 0
    return 3 * states * weights_bytes <= _SHARE * available


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
