"""Torch tensors onto the JAX device and back, with their own dtypes."""

from __future__ import annotations

from typing import Any

import jax
import torch

from detente.bridge.capture.arrays import to_numpy, to_torch
from detente.bridge.lower.precision import x64


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A copy on JAX's default device; int64 and float64 stay what they are."""
    with x64():
        return jax.device_put(to_numpy(tensor))


def from_jax(array: Any) -> torch.Tensor:
    """A new torch tensor on the host. Waits for the array."""
    return to_torch(array)
