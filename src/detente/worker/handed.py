"""What a timing process handed out, in a folder, until a replay has taken it again.

Of a stretch's end the sketches of its change are enough (worker/sketch.py): of GPT-2 Small 1.5 GB are written instead
of 3.
"""

from __future__ import annotations

import hashlib
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
WANTED, UNWANTED = "wanted", "unwanted"
NO_ANSWER = "no answer came whether what was handed out is wanted"
_ANSWER_S = 20.0
# Of the memory that is available, the share that the states around a window's stretches may take.
_SHARE = 0.5
# Of a model whose states are as small as this together every stretch is kept: one that is drawn misses in one session
# of three what happens between two others.
_ALL_BYTES = 64 * 2**20


def answer(folder: Path, wanted: bool) -> None:
    """The parent's side: whether what was handed out is to be kept."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (WANTED if wanted else UNWANTED)).touch()


def await_answer(folder: Path) -> str:
    """The worker's side: the answer, which is there as soon as the parent has read the message. ``NO_ANSWER`` where
    that takes too long (a parent that was stopped)."""
    ends = time.monotonic() + _ANSWER_S
    while time.monotonic() < ends:
        for said in (WANTED, UNWANTED):
            if (folder / said).exists():
                return said
        time.sleep(0.005)
    return NO_ANSWER


def can_hold(weights_bytes: int, states: int, there: int = 0) -> bool:
    """Whether memory holds so many states of a model: its weights, and two moments of each. Counted from the prepared
    weights: what a stack says of its arrays is its own word. ``there``: bytes that are set apart for them already. Of
    a small model always: a stack that filled the memory was proved in its first steps alone."""
    if states_bytes(weights_bytes, states) <= _ALL_BYTES:
        return True
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    available = there + (int(found.group(1)) * 1024 if found else 0)
    return states_bytes(weights_bytes, states) <= _SHARE * available


def states_bytes(weights_bytes: int, states: int) -> int:
    """Bytes of so many states of a model: its weights, and two moments of each."""
    return 3 * states * weights_bytes


class Changed(Exception):
    """What was kept is not what is there; the text says which file."""


@dataclass(frozen=True)
class Kept:
    """A stretch as it was kept: ``parameters`` are the names of what is trained, ``change`` is what the stretch made of
    the state, in sketches, and ``loss`` is that of its step number ``at``."""

    first: int
    steps: int
    batches: list[int]
    before: Mapping[str, np.ndarray]
    parameters: frozenset[str]
    change: Sketched
    at: int
    loss: float


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


def keep_stretches(folder: Path, stretches: Sequence[Stretch], parameters: frozenset[str]) -> str:
    """The states before them and the sketches of what they changed, then the head that makes them exist. The SHA-256
    of the head, which names that of every file: by it the parent knows what was kept, whoever edits the folder."""
    told, files = [], {}
    for number, stretch in enumerate(stretches):
        change = list(state_trace(stretch.before, stretch.after, parameters).sketches())
        files |= _written(folder, f"before-{number}", stretch.before)
        sketches = {f"{kind}|{name}": sketched for kind, name, _, sketched in change}
        files |= _written(folder, f"change-{number}", sketches)
        told.append(
            {
                "first": stretch.first,
                "steps": stretch.steps,
                "batches": stretch.batches,
                "at": stretch.at,
                "loss": stretch.loss,
                "elements": {f"{kind}|{name}": count for kind, name, count, _ in change},
            }
        )
    return _headed(folder, {"parameters": sorted(parameters), "stretches": told, "files": files})


def keep_returned(folder: Path, batch: Mapping[str, np.ndarray], returned: Mapping[str, np.ndarray]) -> str:
    """A fresh batch and what its step returned, ``loss`` among it; the SHA-256 of the head."""
    files = _written(folder, "batch", batch) | _written(folder, "returned", returned)
    return _headed(folder, {"files": files})


def _written(folder: Path, stem: str, tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    digest = hashlib.sha256()
    write_tensors(folder / f"{stem}.safetensors", tensors, digest)
    return {stem: digest.hexdigest()}


def _headed(folder: Path, head: Mapping[str, Any]) -> str:
    data = json.dumps(head).encode()
    (folder / _HEAD).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def is_digest(said: str) -> bool:
    """Whether a process said what it kept, and not why it kept nothing."""
    return re.fullmatch("[0-9a-f]{64}", said) is not None


def map_handed(folder: Path, digest: str) -> Handed:
    """What was kept. Raises Changed where it is not what the process said then: the stack that is proved by it runs in
    that process, and may write to every file that it wrote."""
    try:
        data = (folder / _HEAD).read_bytes()
    except OSError as error:
        raise Changed(f"{_HEAD} is gone ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise Changed(f"{_HEAD} is another one")
    head = json.loads(data)
    for stem, wanted in head["files"].items():
        _check(folder / f"{stem}.safetensors", wanted)
    if "stretches" not in head:
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
    change = Sketched(tuple(parts))
    where = told["first"], told["steps"], told["batches"]
    return Kept(*where, before, parameters, change, told["at"], told["loss"])


def _check(path: Path, wanted: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Changed(f"{path.name} is gone ({error.strerror})") from None
    if found != wanted:
        raise Changed(f"{path.name} is another one")
