"""The folder that a prepare job fills and every other worker maps: weights, batches, reference.

weights.safetensors             canonical names
batches.safetensors             ``0/input_ids``: batch number, entry
side.json                       of a user's model: what its torch side tells its JAX side (workloads/own/side.py)
kinks.json                      where the function has no derivative, and which biases were moved away from there
<reference>.safetensors, .json  of one contract; see reference.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from detente.records.codec import dumps, from_json
from detente.records.kinks import Kinks
from detente.worker.tensorfile import is_whole, map_tensors, write_tensors, write_whole
from detente.workloads.own.side import Side
from detente.workloads.own.size import OwnSize
from detente.workloads.workload import Size

# What is made once for all contracts, and loaded by every row.
MADE = ("weights.safetensors", "batches.safetensors", "side.json", "kinks.json")


def write_weights(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Canonical tensors, floats as float32."""
    write_tensors(folder / "weights.safetensors", tensors)


def map_weights(folder: Path) -> dict[str, np.ndarray]:
    """The canonical tensors, mapped."""
    return map_tensors(folder / "weights.safetensors")


def write_batches(folder: Path, batches: list[dict[str, np.ndarray]]) -> None:
    """All batches in one file."""
    write_tensors(
        folder / "batches.safetensors", {f"{i}/{n}": a for i, b in enumerate(batches) for n, a in b.items()}
    )


def map_batches(folder: Path) -> list[dict[str, np.ndarray]]:
    """The batches in order, mapped."""
    batches: dict[int, dict[str, np.ndarray]] = {}
    for key, array in map_tensors(folder / "batches.safetensors").items():
        number, _, name = key.partition("/")
        batches.setdefault(int(number), {})[name] = array
    return [batches[i] for i in sorted(batches)]


def write_kinks(folder: Path, kinks: Kinks) -> None:
    """Before the weights, which make the folder's model exist."""
    write_whole(folder / "kinks.json", dumps(kinks))


def read_kinks(folder: Path) -> Kinks:
    """What was met when the weights were made."""
    return from_json(Kinks, json.loads((folder / "kinks.json").read_text()))


def write_side(folder: Path, side: Side) -> None:
    """Before the weights, as the kinks."""
    write_whole(folder / "side.json", dumps(side))


def knowing(size: Size, folder: Path) -> Size:
    """The size with what the other side of a pair told, where it has told it."""
    file = folder / "side.json"
    if not isinstance(size, OwnSize) or not size.is_pair or not file.exists():
        return size
    return replace(size, other=from_json(Side, json.loads(file.read_text())))


def is_made(folder: Path) -> bool:
    """Whether a model's weights are there, with what is written before them, and none of it is cut."""
    if not all(is_whole(folder / f"{name}.safetensors") for name in ("weights", "batches")):
        return False
    try:
        read_kinks(folder)
    except (OSError, ValueError):
        return False
    return True
