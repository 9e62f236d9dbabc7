"""Tensors from nothing: fill values, ranges, triangular indices, one_hot; and nodes that compute nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.dtypes import cast, is_bool, is_float, is_integer, out_dtype, spread, wide
from detente.bridge.lower.table import lowers


def _filled(value: Any) -> Any:
    def lower(call: Any, *_: Any, **__: Any) -> jax.Array:
        return jnp.full(call.out.shape, value, out_dtype(call))

    return lower


# An uninitialised tensor is zeros: reading it before it is written is undefined in torch, and this is repeatable.
for _name in ("zeros", "zeros_like", "empty", "empty_like", "empty_strided", "empty_permuted"):
    lowers(f"aten.{_name}.{'memory_format' if _name == 'empty' else 'default'}")(_filled(0))
for _name in ("new_zeros", "new_empty", "new_empty_strided"):
    lowers(f"aten.{_name}.default")(_filled(0))
for _name in ("ones", "ones_like", "new_ones"):
    lowers(f"aten.{_name}.default")(_filled(1))


def full(call: Any, value: Any) -> jax.Array:
    """The result of ``call`` filled with one number or 0-d tensor."""
    made = cast(value, out_dtype(call))
    # A number takes no gradient, and is known as one over and over (state/birth.py).
    return (
        spread(made, call.out.shape)
        if isinstance(value, jax.Array)
        else jnp.broadcast_to(made, call.out.shape)
    )


@lowers("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def _full(call: Any, *args: Any, **named: Any) -> jax.Array:
    value = named["fill_value"] if "fill_value" in named else args[-1]
    return full(call, value)


@lowers("aten.fill.Scalar", "aten.fill.Tensor")
def _fill(call: Any, x: jax.Array, value: Any) -> jax.Array:
    return full(call, value)


lowers("aten.zero.default")(lambda call, x: jnp.zeros_like(x))
lowers("aten.scalar_tensor.default")(lambda call, value, **_: full(call, value))


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(call: Any, *args: Any, **_: Any) -> jax.Array:
    # The length is ATen's own (computed in float64 there); only the values are made here.
    start, step = (0 if len(args) == 1 else args[0]), (args[2] if len(args) > 2 else 1)
    dtype = out_dtype(call)
    kind = wide(dtype)
    steps = lax.iota(kind if not is_bool(kind) else jnp.dtype(jnp.int32), call.out.shape[0])
    if start == 0 and step == 1:
        return cast(steps, dtype)
    return cast(jnp.asarray(start, kind) + steps * jnp.asarray(step, kind), dtype)


@lowers(
    "aten.linspace.default",
    "aten.linspace.Tensor_Tensor",
    "aten.linspace.Tensor_Scalar",
    "aten.linspace.Scalar_Tensor",
)
def _linspace(call: Any, start: Any, end: Any, steps: int, **_: Any) -> jax.Array:
    dtype = out_dtype(call)
    kind = wide(dtype) if is_float(dtype) else jnp.dtype(jnp.float32) if is_integer(dtype) else dtype
    start, end = cast(start, kind), cast(end, kind)
    if steps == 1:
        return cast(jnp.reshape(start, (1,)), dtype)
    step = (end - start) / (steps - 1)
    place = jnp.arange(steps).astype(jnp.real(start).dtype)
    # From both ends towards the middle, as ATen does: the last value is exactly `end`.
    values = jnp.where(place < steps // 2, start + step * place, end - step * (steps - 1 - place))
    return cast(values, dtype)


@lowers(
    "aten.logspace.default",
    "aten.logspace.Tensor_Tensor",
    "aten.logspace.Tensor_Scalar",
    "aten.logspace.Scalar_Tensor",
)
def _logspace(call: Any, start: Any, end: Any, steps: int, base: float = 10.0, **_: Any) -> jax.Array:
    dtype = out_dtype(call)
    kind = wide(dtype) if is_float(dtype) else jnp.dtype(jnp.float32)
    exponents = jnp.linspace(cast(start, kind), cast(end, kind), steps, dtype=kind)
    return cast(jnp.power(jnp.asarray(base, kind), exponents), dtype)


@lowers("aten.eye.default", "aten.eye.m")
def _eye(call: Any, *_: Any, **__: Any) -> jax.Array:
    rows, columns = call.out.shape
    return jnp.eye(rows, columns, dtype=out_dtype(call))


@lowers("aten.tril_indices.default")
def _tril_indices(call: Any, row: int, col: int, offset: int = 0, **_: Any) -> jax.Array:
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)), out_dtype(call))


@lowers("aten.triu_indices.default")
def _triu_indices(call: Any, row: int, col: int, offset: int = 0, **_: Any) -> jax.Array:
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)), out_dtype(call))


@lowers("aten.one_hot.default")
def _one_hot(call: Any, x: jax.Array, num_classes: int = -1) -> jax.Array:
    count = call.out.shape[-1]
    call.fault(
        jnp.any((x < 0) | (x >= count)), "RuntimeError: Class values must be smaller than num_classes."
    )
    return cast(x[..., None] == lax.iota(x.dtype, count), out_dtype(call))


@lowers("aten.vander.default", "aten.linalg_vander.default")
def _vander(call: Any, x: jax.Array, N: int | None = None, increasing: bool = False) -> jax.Array:  # noqa: N803
    count = call.out.shape[-1]
    x = jnp.atleast_1d(x)
    powers = [jnp.ones_like(x)]
    for _ in range(count - 1):
        powers.append(powers[-1] * x)
    if call.node.op == "aten.vander.default" and not increasing:
        powers = powers[::-1]
    return jnp.stack(powers[:count], -1) if count else jnp.zeros((*x.shape, 0), x.dtype)


def _window(values: Any) -> Any:
    def lower(call: Any, length: int, periodic: Any = True, *args: Any, **_: Any) -> jax.Array:
        count = length + 1 if periodic and length > 1 else length
        numbers = values(count, *args) if count > 1 else np.ones(count)
        return jnp.asarray(np.asarray(numbers)[:length], out_dtype(call))

    return lower


def _cosine(count: int, alpha: float = 0.54, beta: float = 0.46) -> Any:
    return alpha - beta * np.cos(2 * np.pi * np.arange(count) / (count - 1))


lowers("aten.hann_window.default", "aten.hann_window.periodic")(_window(lambda n: _cosine(n, 0.5, 0.5)))
lowers(
    "aten.hamming_window.default",
    "aten.hamming_window.periodic",
    "aten.hamming_window.periodic_alpha",
    "aten.hamming_window.periodic_alpha_beta",
)(_window(_cosine))
lowers("aten.bartlett_window.default", "aten.bartlett_window.periodic")(_window(np.bartlett))
lowers("aten.blackman_window.default", "aten.blackman_window.periodic")(_window(np.blackman))
lowers("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta")(
    _window(lambda n, beta=12.0: np.kaiser(n, beta))
)


@lowers(
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
    note="checked by torch while the graph was captured",
)
def _nothing(call: Any, *_: Any, **__: Any) -> None:
    return None


@lowers("aten.sym_size.int")
def _sym_size(call: Any, x: jax.Array, dim: int) -> int:
    return x.shape[dim]
