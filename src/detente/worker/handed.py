"""What a timing process handed out, in a folder, until a replay has taken it again.

Of a stretch's end the sketches of its change are enough (worker/sketch.py): of GPT-2 Small 1.5 GB are written instead
of 3.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detente.worker.reference import Sketched, state_trace
from detente.worker.tensorfile import map_tensors, write_tensors
from detente.worker.window import Stretch

_HEAD = "handed.json"
# The parent's answer to the message that the window is over. Before it no process knows whether its window is taken
# again: a stack that could read that in its job file would be honest there alone.
_WANTED, _UNWANTED = "wanted", "unwanted"
_ANSWER_S = 20.0
# Of the memory that is available, the share that the states around a window's stretches may take.
_SHARE = 0.5
# Of a model whose states are as small as this together every stretch is kept: one that is drawn misses in one session
# of three what happens between two others.
_ALL_BYTES = 64 * 2**20


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


def can_hold(weights_bytes: int, states: int, there: int = 0) -> bool:
    """Whether memory holds so many states of a model: its weights, and two moments of each. Counted from the prepared
    weights: what a stack says of its arrays is its own word. ``there``: bytes that are set apart for them already."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    available = there + (int(found.group(1)) * 1024 if found else 0)
    return states_bytes(weights_bytes, states) <= _SHARE * available


def states_bytes(weights_bytes: int, states: int) -> int:
    """Bytes of so many states of a model: its weights, and two moments of each."""
    return 3 * states * weights_bytes


@dataclass(frozen=True)
class Kept:
    """A stretch as it was kept: ``parameters`` are the names of what is trained, ``change`` is what the stretch made of
    the state, in sketches."""

    first: int
    steps: int
    batches: list[int]
    before: Mapping[str, np.ndarray]
    parameters: frozenset[str]
    change: Sketched


@dataclass(frozen=True)
class Handed:
    """``stretches``; of a region without state one fresh ``batch`` and what its step ``returned``."""

    stretches: tuple[Kept, ...]
    batch: Mapping[str, np.ndarray]
    returned: Mapping[str, np.ndarray]


def some_of(stretches: Sequence[Stretch], drawn: Stretch | None) -> list[Stretch]:
    """The stretches that are kept: all of a small model, else the one that was drawn."""
    size = sum(a.nbytes for s in stretches for a in s.before.values())
    return list(stretches) if size <= _ALL_BYTES else [drawn] if drawn is not None else []


def keep_stretches(folder: Path, stretches: Sequence[Stretch], parameters: frozenset[str]) -> None:
    """The states before them and the sketches of what they changed, then the head that makes them exist."""
    told = []
    for number, stretch in enumerate(stretches):
        change = list(state_trace(stretch.before, stretch.after, parameters).sketches())
        write_tensors(folder / f"before-{number}.safetensors", stretch.before)
        sketches = {f"{kind}|{name}": sketched for kind, name, _, sketched in change}
        write_tensors(folder / f"change-{number}.safetensors", sketches)
        told.append(
            {
                "first": stretch.first,
                "steps": stretch.steps,
                "batches": stretch.batches,
                "elements": {f"{kind}|{name}": count for kind, name, count, _ in change},
            }
        )
    (folder / _HEAD).write_text(json.dumps({"parameters": sorted(parameters), "stretches": told}))


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
        batch, returned = (map_tensors(folder / f"{n}.safetensors") for n in ("batch", "returned"))
        return Handed((), batch, returned)
    parameters = frozenset(head["parameters"])
    kept = tuple(_kept(folder, i, told, parameters) for i, told in enumerate(head["stretches"]))
    return Handed(kept, {}, {})


def _kept(folder: Path, number: int, told: Mapping[str, Any], parameters: frozenset[str]) -> Kept:
    sketches = map_tensors(folder / f"change-{number}.safetensors")
    parts = []
    for key, count in told["elements"].items():
        kind, _, name = key.partition("|")
        parts.append((kind, name, int(count), sketches[key]))
    before = map_tensors(folder / f"before-{number}.safetensors")
    return Kept(told["first"], told["steps"], told["batches"], before, parameters, Sketched(tuple(parts)))
