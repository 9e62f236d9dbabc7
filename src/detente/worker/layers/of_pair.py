"""The first layer that differs between the two sides of a pair, asked in the process whose proof failed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.tensor_error import TensorError
from detente.worker.layers.compare import first_difference
from detente.worker.layers.record import LAYERS, has_boundaries, read_boundaries
from detente.workloads.own.size import OwnSize

# A proof in fp64 fails above a relative 1e-9 (judge/parity.py, which a worker does not import). Asking costs a second;
# whether the proof failed is the judge's to say.
_SUSPECT = 1e-9


def differing(
    running: Any,
    size: Any,
    folder: Path,
    placed: Any,
    weights: Mapping[str, np.ndarray],
    errors: tuple[TensorError, ...],
) -> str:
    """In words; empty where nothing is suspect, or this is no pair.

    running   JAX's side, in float64
    folder    prepared, with what the torch side recorded
    """
    if not isinstance(size, OwnSize) or not size.is_pair or not hasattr(running, "parts"):
        return ""
    if not any(not e.err <= _SUSPECT * e.rms for e in errors) or not has_boundaries(folder, LAYERS):
        return ""
    from detente.worker.layers.in_jax import walk

    running.load(weights)
    parts, params, rest = running.parts, running.params, running.rest
    leaves = {_joined(path): array for state in (params, rest) for path, array in parts.leaves(state)}
    named = {n: a for n, a in leaves.items() if a.dtype == np.float64}  # no keys and no counts

    def forward(named: Mapping[str, Any], batch: Any) -> Any:
        states = (parts.filled(s, lambda path, old: named.get(_joined(path), old)) for s in (params, rest))
        return parts.loss(*states, batch)[0]

    other = walk(forward, named, placed)
    right = read_boundaries(folder, LAYERS)
    held: dict[str, tuple[str, ...]] = {}
    for rule in running.rules:
        held[rule.name] = (*held.get(rule.name, ()), _joined(rule.path))
    losses = _losses(errors)
    found = first_difference(right, other, held, losses=losses)
    return found.text if found is not None else ""


def _losses(errors: tuple[TensorError, ...]) -> tuple[float, float] | None:
    """Two numbers as far apart as the first losses are: the reference's rms is its size."""
    first = next((e for e in errors if e.kind == "loss" and e.name == "1"), None)
    return None if first is None else (first.rms, first.rms + first.err)


def _joined(path: Any) -> str:
    return ".".join(str(part) for part in path)
