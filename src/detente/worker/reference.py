"""The fp64 references of one contract at one size: what they store, and how far a run lies from them.

Two per contract: of the three timed steps, and of the window (the state after its first steps; of a region without
state what each rotating batch gives).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.contract import Contract
from detente.records.tensor_error import NOT_FINITE, Kind, TensorError
from detente.worker.sketch import WHOLE, rms, sketch
from detente.worker.tensorfile import map_tensors, write_tensors, write_whole
from detente.worker.unbounded import finite_part, places

# Kinds that a state must have whole, with what the optimizer keeps and without.
TENSORS: frozenset[Kind] = frozenset[Kind](("update", "buffer"))
STATE: frozenset[Kind] = frozenset[Kind](("update", "buffer", "moment"))
GRADIENTS: frozenset[Kind] = frozenset[Kind](("gradient",))
# What a step of a region returns besides its loss. A row that gave none of it, where it was asked for, was proved by
# its loss alone: without its backward pass it was four times as fast, and nothing said that no gradient was compared.
RETURNED: Mapping[str, frozenset[Kind]] = {
    "forward": frozenset[Kind](("output",)),
    "gradient": GRADIENTS,
    "train-step": frozenset[Kind](),
}
KINDS: tuple[Kind, ...] = ("loss", "output", "gradient", "update", "buffer", "moment")
# What optimizers usually keep of a parameter, where the reference has none that a gradient reaches.
_USUAL = frozenset({"exp_avg", "exp_avg_sq", "momentum_buffer"})
# Bytes of a number, at most: more are no number.
_WIDEST = 16


@dataclass(frozen=True)
class Trace:
    """What some steps leave behind, as host arrays.

    losses     of the first steps, from batch 0 on
    outputs    of the forward region on batch 0 (empty otherwise)
    gradients  at the initial weights on batch 0 (may be empty: not proved in this process)
    before, after  canonical tensors before the first step and after the last
    parameters names of ``after`` that are trainable
    moments    what the optimizer keeps after the last step, ``moments_before`` before the first: absent there is zero
    """

    losses: tuple[float, ...]
    outputs: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]
    parameters: frozenset[str]
    moments: Mapping[str, np.ndarray] = field(default_factory=dict)
    moments_before: Mapping[str, np.ndarray] = field(default_factory=dict)

    def sketches(self) -> Iterator[tuple[Kind, str, int, np.ndarray]]:
        """Everything that is compared: kind, name, elements, sketch. Updates are differences: a weight's own size would
        hide a wrong update. What an output or a buffer holds besides numbers is compared by itself (unbounded.py)."""
        for i, loss in enumerate(self.losses):
            yield "loss", str(i + 1), 1, np.array([loss])
        for name, array in self.outputs.items():
            yield from _apart("output", name, array)
        for name, array in self.gradients.items():
            yield "gradient", name, array.size, sketch(name, array)
        for name, array in self.after.items():
            # A tensor that was never given (an untied copy, say) or that changed its size has no before; the reference
            # knows no such name or another size, and that is the finding.
            before = self.before.get(name)
            before = before if before is not None and before.size == array.size else None
            if name in self.parameters:
                yield "update", name, array.size, sketch(name, array, before)
            else:
                yield from _apart("buffer", name, array, before)
        for name, array in self.moments.items():
            before = self.moments_before.get(name)
            yield "moment", name, array.size, sketch(name, array, before)


def _apart(
    kind: Kind, name: str, array: np.ndarray, before: np.ndarray | None = None
) -> Iterator[tuple[Kind, str, int, np.ndarray]]:
    """A tensor that may hold infinities and NaN: its finite values, and where it holds something else."""
    found = places(array)
    old = None if before is None else finite_part(before, places(before))
    yield kind, name, array.size, sketch(name, finite_part(array, found), old)
    if found is not None:
        yield kind, name + NOT_FINITE, array.size, sketch(name, found)


@dataclass(frozen=True)
class Sketched:
    """What is left of a trace that was kept: its sketches alone."""

    parts: tuple[tuple[Kind, str, int, np.ndarray], ...]

    def sketches(self) -> Iterator[tuple[Kind, str, int, np.ndarray]]:
        """As ``Trace.sketches``."""
        yield from self.parts


@dataclass(frozen=True)
class Reference:
    """Sketches and sizes of the fp64 run, and torch-eager's own errors at the contract's precision.

    ``entries`` maps ``kind|name`` to (elements, rms, err_ref); ``steps`` is how many steps led there. ``rotation`` has
    the losses of the rotating batches at the loaded weights, of a window alone, and as many as it took no time to
    compute.
    """

    sketches: Mapping[str, np.ndarray]
    entries: Mapping[str, tuple[int, float, float]]
    steps: int = 3
    rotation: tuple[float, ...] = ()

    def errors(
        self, trace: Trace | Sketched, whole: frozenset[Kind] = frozenset()
    ) -> tuple[TensorError, ...]:
        """The error of every tensor of a run. A tensor that the reference has and the run lacks is infinitely wrong,
        unless the whole kind was not proved in this process; kinds of ``whole`` always are. A gradient or a moment of
        zeros is what torch has none of: of a parameter that no gradient reaches, and of its size."""
        found: list[TensorError] = []
        seen: set[str] = set()
        kinds = set(whole)
        for kind, name, count, sketched in trace.sketches():
            kinds.add(kind)
            key = f"{kind}|{name}"
            elements, size, err_ref = self.entries.get(key, (count, 0.0, 0.0))
            right = key in self.entries and elements == count
            if self._of_none(kind, name, count) and not np.any(sketched):
                continue
            error = rms(sketched - self.sketches[key], elements) if right else float("inf")
            found.append(TensorError(kind, name, error, err_ref, size, elements, elements > WHOLE))
            seen.add(key)
        for key, (elements, size, err_ref) in self.entries.items():
            kind, _, name = key.partition("|")
            if key not in seen and kind in kinds:
                found.append(TensorError(kind, name, float("inf"), err_ref, size, elements))  # type: ignore[arg-type]
        return tuple(sorted(found, key=lambda e: (KINDS.index(e.kind), e.name)))

    def strangers(self, parts: Iterable[tuple[str, int, int]]) -> tuple[TensorError, ...]:
        """What of a state (name, elements, bytes of one) is no part of this one: infinitely wrong. What reading a state
        may take hangs on its size, so that nothing may be added to it; not in processes either whose moments are not
        compared. 32 MB of zeros, a moment of nothing, once made room for a whole stretch."""
        return tuple(
            TensorError(_kind(name), f"{name} (no part of this state)", float("inf"), 0.0, 0.0, elements)
            for name, elements, width in sorted(parts)
            if width > _WIDEST or not (self._has(name, elements) or self._unreached(name, elements))
        )

    def loss_error(self, number: int, loss: float) -> TensorError | None:
        """The error of a loss that is stored under this ``number``; None where there is none."""
        key = f"loss|{number}"
        if key not in self.entries:
            return None
        elements, size, err_ref = self.entries[key]
        return TensorError(
            "loss", str(number), abs(loss - float(self.sketches[key][0])), err_ref, size, elements
        )

    def _has(self, name: str, elements: int) -> bool:
        kinds = ("moment",) if _kind(name) == "moment" else ("update", "buffer")
        return any(self.entries.get(f"{kind}|{name}", (-1,))[0] == elements for kind in kinds)

    def _of_none(self, kind: Kind, name: str, elements: int) -> bool:
        """Whether torch has none of this, as no gradient reaches its parameter."""
        if kind == "gradient":
            return f"gradient|{name}" not in self.entries and self._has(name, elements)
        return kind == "moment" and self._unreached(name, elements)

    def _unreached(self, name: str, elements: int) -> bool:
        """Whether this may be a moment of a parameter that no gradient reaches."""
        key, colon, parameter = name.partition(":")
        known = f"moment|{name}" in self.entries
        return bool(colon) and not known and key in self._keys and self._has(parameter, elements)

    @cached_property
    def _keys(self) -> frozenset[str]:
        """What the optimizer keeps of parameters, by torch's names."""
        told = (key.partition("|")[2].partition(":") for key in self.entries if key.startswith("moment|"))
        return _USUAL | {key for key, colon, _ in told if colon}


def _kind(name: str) -> Kind:
    return "moment" if ":" in name or name == "step" else "update"


def split_state(state: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(tensors, what the optimizer keeps) of a state as ``Running.state`` gives it."""
    moments = {n: a for n, a in state.items() if _kind(n) == "moment"}
    return {n: a for n, a in state.items() if n not in moments}, moments


def state_trace(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], parameters: frozenset[str]
) -> Trace:
    """What some steps made of a state."""
    (old, old_moments), (new, moments) = split_state(before), split_state(after)
    return Trace((), {}, {}, old, new, parameters, moments, old_moments)


def reference_name(contract: Contract) -> str:
    """File stem: a reference belongs to a contract and, through err_ref, to a precision."""
    return f"reference-{contract.name}-{contract.precision}"


def window_name(contract: Contract) -> str:
    """File stem of the reference of the window: the state after its first steps, or what each batch gives."""
    return f"window-{contract.name}-{contract.precision}"


def make_reference(trace: Trace, steps: int = 3) -> Reference:
    """A reference out of the fp64 run; err_ref is filled by ``with_errors``."""
    sketches, entries = {}, {}
    for kind, name, elements, sketched in trace.sketches():
        key = f"{kind}|{name}"
        sketches[key] = sketched
        entries[key] = (elements, rms(sketched, elements), 0.0)
    return Reference(sketches, entries, steps)


def with_errors(reference: Reference, errors: tuple[TensorError, ...]) -> Reference:
    """The reference with torch-eager's own errors written in; of several runs the larger."""
    own = {f"{e.kind}|{e.name}": e.err for e in errors}
    entries = {k: (n, r, max(e, own.get(k, 0.0))) for k, (n, r, e) in reference.entries.items()}
    return replace(reference, entries=entries)


def write_reference(folder: Path, stem: str, reference: Reference) -> None:
    """Sketches first, then the JSON that makes the reference exist: there whole or not at all, with a digest of both,
    because a machine goes down between two writes, and a disk is full in the middle of one."""
    tensors = folder / f"{stem}.safetensors"
    write_tensors(tensors, reference.sketches)
    told = {
        "steps": reference.steps,
        "entries": {k: list(v) for k, v in reference.entries.items()},
        "rotation": list(reference.rotation),
        "tensors": _digest(tensors.read_bytes()),
    }
    write_whole(folder / f"{stem}.json", json.dumps({"digest": _digest_of(told), "reference": told}))


def has_reference(folder: Path, contract: Contract) -> bool:
    """Whether the folder holds this contract's two references, whole and as they were written. What is torn is none:
    it is prepared again."""
    return all(_is_sound(folder, stem) for stem in (reference_name(contract), window_name(contract)))


def digests(folder: Path, contract: Contract) -> tuple[str, ...]:
    """What tells this contract's two references from any others; empty where one is not whole."""
    if not has_reference(folder, contract):
        return ()
    return tuple(
        _digest_of(_told(folder, stem)) for stem in (reference_name(contract), window_name(contract))
    )


def map_reference(folder: Path, stem: str) -> Reference:
    """The stored reference under ``reference_name`` or ``window_name`` of a contract. Raises ValueError, naming the
    file, for one that is not as it was written."""
    told = _told(folder, stem)
    entries = {k: (int(n), float(r), float(e)) for k, (n, r, e) in told["entries"].items()}
    sketches = map_tensors(folder / f"{stem}.safetensors")
    return Reference(sketches, entries, told["steps"], tuple(told["rotation"]))


def _is_sound(folder: Path, stem: str) -> bool:
    try:
        _told(folder, stem)
    except (OSError, ValueError):
        return False
    return True


def _told(folder: Path, stem: str) -> dict[str, Any]:
    """What the JSON of a reference says, behind the digest of it and of the tensors beside it."""
    file, tensors = folder / f"{stem}.json", folder / f"{stem}.safetensors"
    # A session asks for each process of each row: what was read is read again where one of the files is another.
    return _read(file, tensors, _stamp(file), _stamp(tensors))


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_ctime_ns


@functools.lru_cache(maxsize=64)
def _read(file: Path, tensors: Path, *stamps: tuple[int, int, int]) -> dict[str, Any]:
    kept = json.loads(file.read_text())
    told = kept.get("reference") if isinstance(kept, dict) else None
    if not isinstance(told, dict) or kept.get("digest") != _digest_of(told):
        raise ValueError(f"{file} is not as it was written; without it, it is made again")
    if told["tensors"] != _digest(tensors.read_bytes()):
        raise ValueError(f"{tensors} is not as it was written; without it, it is made again")
    return told


def _digest_of(told: dict[str, Any]) -> str:
    return _digest(json.dumps(told, sort_keys=True).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
