"""Torch tensors onto the JAX device and back, with their own dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.dlpack
import jax.numpy as jnp
import torch

from detente.bridge.arrays import seen, to_numpy, to_torch
from detente.bridge.capture.batch import Layout, aval, flatten
from detente.bridge.capture.traits import laid
from detente.bridge.live.moving_number import MovingNumber
from detente.bridge.lower.precision import x64
from detente.bridge.private import on_host


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A copy on JAX's default device; int64 and float64 stay what they are."""
    with x64():
        if jax.default_backend() == "cpu":
            return on_host(seen(tensor))
        return jax.device_put(to_numpy(tensor))


def lent(tensor: torch.Tensor) -> jax.Array:
    """The tensor's own memory as an array, where both live on the host and XLA takes it as it lies (dense, on 64 bytes,
    of a dtype that the exchange knows); a copy otherwise. Whoever takes it donates it to nothing, and writes to the
    tensor while no program reads it."""
    both = tensor.device.type == "cpu" and jax.default_backend() == "cpu"
    # A conjugate or a negative that torch has only noted lies there as it was; the exchange asks for the first alone.
    if both and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
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
    """A batch that is on the device already. ``original`` is the batch itself, in the call that was given it; None
    where it was placed ahead of its step (``step.place``): by then it may be a buffer that was filled anew, or a
    container that was emptied, and whoever needs the batch makes it again of the ``arrays``, each as it lay in memory.
    ``begins``: where in its memory each tensor began."""

    layout: Layout
    arrays: list[Any]
    begins: tuple[int, ...]
    original: Any = None

    def as_placed(self) -> Any:
        """The batch with the values that were placed, whatever it was made of holds by now."""
        return self.layout.build_for_eager(self._tensors())

    def _tensors(self) -> list[torch.Tensor]:
        known, odd = self.layout, dict(self.layout.odd)
        rows = zip(self.arrays, known.strides, known.tracked, strict=True)
        return [
            laid(from_jax(array), strides, odd.get(number)).requires_grad_(tracked)
            for number, (array, strides, tracked) in enumerate(rows)
        ]

    @property
    def to_capture(self) -> Any:
        """The batch as a program is captured from it."""
        if self.original is None:
            return self.layout.build(self._tensors())
        floats = self.layout.floats
        if not floats and not self.layout.unasked:
            return self.original
        own = iter(flatten(self.original)[0])
        return self.layout.build(
            [from_jax(array) if i in floats else next(own) for i, array in enumerate(self.arrays)]
        )


def place(batch: Any, *, ahead: bool = False) -> Placed:
    """A batch (any pytree of tensors and plain values) on JAX's default device; ``ahead``: of its step, so that the
    batch may be another one by then."""
    tensors, layout = flatten(batch)
    arrays, begins = [to_jax(t) for t in tensors], tuple([t.storage_offset() for t in tensors])
    return Placed(layout, arrays, begins, None if ahead else batch)


def with_numbers(placed: Placed) -> Placed:
    """The same batch with its Python floats as inputs."""
    before = placed.layout
    floats: dict[int, Any] = {
        i: MovingNumber(torch.tensor(value, dtype=torch.float64))
        for i, value in before.static
        if type(value) is float
    }
    shown = [
        torch.empty(a.shape, dtype=getattr(torch, a.dtype), device="meta", requires_grad=tracked)
        for a, tracked in zip(before.avals, before.tracked, strict=True)
    ]
    tensors, layout = flatten(before.build_with(before.nobodys | floats, shown), given=False)
    known = iter(range(len(shown)))
    own = [
        None if i in layout.floats else next(known) for i in range(len(tensors))
    ]  # each one's number before
    now = {number: i for i, number in enumerate(own) if number is not None}
    layout = replace(
        layout,
        strides=tuple(() if number is None else before.strides[number] for number in own),
        odd=tuple((now[number], trait) for number, trait in before.odd),
    )
    arrays = [to_jax(t) if n is None else placed.arrays[n] for t, n in zip(tensors, own, strict=True)]
    begins = tuple(0 if number is None else placed.begins[number] for number in own)
    return Placed(layout, arrays, begins, placed.original)


def without_asking(placed: Placed, labels: Collection[str]) -> Placed:
    """The same batch, of which nobody asks for the plain values of these names."""
    layout = placed.layout
    rows = zip(layout.static, layout.labels, strict=True)
    marked = frozenset(i for (i, _), label in rows if label in labels)
    return replace(placed, layout=replace(layout, unasked=marked)) if marked else placed
