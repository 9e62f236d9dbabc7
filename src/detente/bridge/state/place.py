"""Torch tensors onto the JAX device and back, with their own dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.dlpack
import jax.numpy as jnp
import torch

from detente.bridge.arrays import to_numpy, to_torch
from detente.bridge.capture.batch import Layout, aval, flatten
from detente.bridge.lower.precision import x64


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A copy on JAX's default device; int64 and float64 stay what they are."""
    with x64():
        return jax.device_put(to_numpy(tensor))


def lent(tensor: torch.Tensor) -> jax.Array:
    """The tensor's own memory as an array, where both live on the host and XLA takes it as it lies (dense, on 64 bytes,
    of a dtype that the exchange knows); a copy otherwise. Whoever takes it donates it to nothing, and writes to the
    tensor while no program reads it."""
    on_host = tensor.device.type == "cpu" and jax.default_backend() == "cpu"
    # A conjugate or a negative that torch has only noted lies there as it was; the exchange asks for the first alone.
    if on_host and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        with x64(), contextlib.suppress(ValueError, BufferError, RuntimeError, TypeError):
            return jax.dlpack.from_dlpack(tensor.detach(), copy=False)
    return to_jax(tensor)


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, jax.ShapeDtypeStruct]:
    """Of the arrays that ``to_jax`` and ``lent`` make, by name; nothing is read."""
    held = {n: aval(t) for n, t in tensors.items()}
    return {n: jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for n, a in held.items()}


def from_jax(array: Any) -> torch.Tensor:
    """A new torch tensor on the host. Waits for the array."""
    return to_torch(array)


@dataclass(frozen=True)
class Placed:
    """A batch that is on the device already (``step.place``); ``original`` is kept for a capture or a
    certificate, ``example`` for a capture where that is another one (``with_numbers``)."""

    layout: Layout
    arrays: list[Any]
    original: Any
    example: Any = None

    def as_placed(self) -> Any:
        """The batch with the values that were placed: ``original`` may be a buffer that was filled anew since."""
        tensors = [
            from_jax(array).requires_grad_(live.requires_grad)
            for array, live in zip(self.arrays, flatten(self.original)[0], strict=True)
        ]
        return self.layout.build(tensors)

    @property
    def to_capture(self) -> Any:
        return self.original if self.example is None else self.example


def place(batch: Any) -> Placed:
    """A batch (any pytree of tensors and plain values) on JAX's default device."""
    tensors, layout = flatten(batch)
    return Placed(layout, [to_jax(t) for t in tensors], batch)


def with_numbers(placed: Placed) -> Placed:
    """The same batch with its Python floats as inputs: 0-d tensors of float64, which widen no result."""
    numbers = {i for i, value in placed.layout.static if type(value) is float}
    given = iter(placed.arrays)
    arrays = [
        next(given) if i not in dict(placed.layout.static) else None for i in range(len(placed.layout.order))
    ]
    example = placed.layout.build_with(
        {i: torch.tensor(value, dtype=torch.float64) for i, value in placed.layout.static if i in numbers},
        flatten(placed.original)[0],
    )
    tensors, layout = flatten(example)
    known = [
        array
        if array is not None
        else to_jax(torch.tensor(dict(placed.layout.static)[i], dtype=torch.float64))
        for i, array in enumerate(arrays)
        if array is not None or i in numbers
    ]
    assert len(known) == len(tensors)
    return Placed(layout, known, placed.original, example)


def but_floats(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a layout's key says but for the values of its floats."""
    shape, avals, static, order = key
    return (
        shape,
        avals,
        tuple((i, kind) if kind == "float" else (i, kind, value) for i, kind, value in static),
        order,
    )
