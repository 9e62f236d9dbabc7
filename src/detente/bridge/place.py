"""Torch tensors onto the JAX device and back, with their own dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import torch

from detente.bridge.capture.arrays import to_numpy, to_torch
from detente.bridge.capture.batch import Layout, flatten
from detente.bridge.lower.precision import x64


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A copy on JAX's default device; int64 and float64 stay what they are."""
    with x64():
        return jax.device_put(to_numpy(tensor))


def from_jax(array: Any) -> torch.Tensor:
    """A new torch tensor on the host. Waits for the array."""
    return to_torch(array)


@dataclass(frozen=True)
class Placed:
    """A batch that is on the device already (``step.place``); ``original`` is kept for a capture or a
    certificate."""

    layout: Layout
    arrays: list[Any]
    original: Any


def place(batch: Any) -> Placed:
    """A batch (any pytree of tensors and plain values) on JAX's default device."""
    tensors, layout = flatten(batch)
    return Placed(layout, [to_jax(t) for t in tensors], batch)
