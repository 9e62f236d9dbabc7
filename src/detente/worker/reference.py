"""The fp64 reference of one contract at one size: what it stores, and how far a run lies from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detente.records.contract import Contract
from detente.records.tensor_error import Kind, TensorError
from detente.worker.sketch import WHOLE, rms, sketch
from detente.worker.tensorfile import map_tensors, write_tensors

KINDS: tuple[Kind, ...] = ("loss", "output", "gradient", "update", "buffer")


@dataclass(frozen=True)
class Trace:
    """What three steps leave behind, as host arrays.

    losses     of steps 1, 2, 3 on batches 0, 1, 2
    outputs    of the forward region on batch 0 (empty otherwise)
    gradients  at the initial weights on batch 0 (may be empty: not proved in this process)
    before, after  canonical tensors before step 1 and after step 3
    parameters names of ``after`` that are trainable
    """

    losses: tuple[float, ...]
    outputs: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]
    parameters: frozenset[str]

    def sketches(self) -> Iterator[tuple[Kind, str, int, np.ndarray]]:
        """Everything that is compared: kind, name, elements, sketch. Updates are differences: a weight's own size would
        hide a wrong update."""
        for i, loss in enumerate(self.losses):
            yield "loss", str(i + 1), 1, np.array([loss])
        for name, array in self.outputs.items():
            yield "output", name, array.size, sketch(name, array)
        for name, array in self.gradients.items():
            yield "gradient", name, array.size, sketch(name, array)
        for name, array in self.after.items():
            # A tensor that was never given (an untied copy, say) or that changed its size has no before; the reference
            # knows no such name or another size, and that is the finding.
            before = self.before.get(name)
            before = before if before is not None and before.size == array.size else None
            yield (
                ("update" if name in self.parameters else "buffer"),
                name,
                array.size,
                sketch(name, array, before),
            )


@dataclass(frozen=True)
class Reference:
    """Sketches and sizes of the fp64 run, and torch-eager's own errors at the contract's precision.

    ``entries`` maps ``kind|name`` to (elements, rms, err_ref).
    """

    sketches: Mapping[str, np.ndarray]
    entries: Mapping[str, tuple[int, float, float]]

    def errors(self, trace: Trace) -> tuple[TensorError, ...]:
        """The error of every tensor of a run. A tensor that the reference has and the run lacks is infinitely wrong,
        unless the whole kind was not proved in this process."""
        found: list[TensorError] = []
        seen: set[str] = set()
        for kind, name, count, sketched in trace.sketches():
            key = f"{kind}|{name}"
            elements, size, err_ref = self.entries.get(key, (count, 0.0, 0.0))
            right = key in self.entries and elements == count
            error = rms(sketched - self.sketches[key], elements) if right else float("inf")
            found.append(TensorError(kind, name, error, err_ref, size, elements, elements > WHOLE))
            seen.add(key)
        kinds = {e.kind for e in found}
        for key, (elements, size, err_ref) in self.entries.items():
            kind, _, name = key.partition("|")
            if key not in seen and kind in kinds:
                found.append(TensorError(kind, name, float("inf"), err_ref, size, elements))  # type: ignore[arg-type]
        return tuple(sorted(found, key=lambda e: (KINDS.index(e.kind), e.name)))


def reference_name(contract: Contract) -> str:
    """File stem: a reference belongs to a contract and, through err_ref, to a precision."""
    return f"reference-{contract.name}-{contract.precision}"


def make_reference(trace: Trace) -> Reference:
    """A reference out of the fp64 run; err_ref is filled by ``with_errors``."""
    sketches, entries = {}, {}
    for kind, name, elements, sketched in trace.sketches():
        key = f"{kind}|{name}"
        sketches[key] = sketched
        entries[key] = (elements, rms(sketched, elements), 0.0)
    return Reference(sketches, entries)


def with_errors(reference: Reference, errors: tuple[TensorError, ...]) -> Reference:
    """The reference with torch-eager's own errors written in."""
    own = {f"{e.kind}|{e.name}": e.err for e in errors}
    return Reference(
        reference.sketches, {k: (n, r, own.get(k, 0.0)) for k, (n, r, _) in reference.entries.items()}
    )


def write_reference(folder: Path, contract: Contract, reference: Reference) -> None:
    """Sketches first, then the JSON that makes the reference exist."""
    stem = reference_name(contract)
    write_tensors(folder / f"{stem}.safetensors", reference.sketches)
    (folder / f"{stem}.json").write_text(json.dumps({k: list(v) for k, v in reference.entries.items()}))


def map_reference(folder: Path, contract: Contract) -> Reference:
    """The stored reference of a contract."""
    stem = reference_name(contract)
    entries = {
        k: (int(n), float(r), float(e))
        for k, (n, r, e) in json.loads((folder / f"{stem}.json").read_text()).items()
    }
    return Reference(map_tensors(folder / f"{stem}.safetensors"), entries)
