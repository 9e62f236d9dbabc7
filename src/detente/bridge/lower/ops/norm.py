"""Normalisation layers: layer, group, instance, batch and RMS norm, weight norm.

Statistics and the affine map are computed in float32 for half precision and the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.kernels.batch_norms import Norm, normalised, spread
from detente.bridge.kernels.build import may_call
from detente.bridge.kernels.layer_norms import layer_norm
from detente.bridge.lower.backwards import backwards_once
from detente.bridge.lower.channels_last import Last, Normed
from detente.bridge.lower.dtypes import cast, out_dtype, wide
from detente.bridge.lower.ops.reduce import vector_norm
from detente.bridge.lower.table import lowers
from detente.bridge.refusal import refuse


def standard(x: jax.Array, over: tuple[int, ...], eps: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(x - mean) / sqrt(var + eps), and mean and 1/sqrt(var + eps) with kept dimensions."""
    mean = jnp.mean(x, over, keepdims=True)
    away = x - mean
    inverse = lax.rsqrt(jnp.mean(away * away, over, keepdims=True) + eps)
    return away * inverse, mean, inverse


def _affine(
    y: jax.Array, weight: jax.Array | None, bias: jax.Array | None, shape: Sequence[int]
) -> jax.Array:
    if weight is not None:
        y = y * cast(weight, y.dtype).reshape(shape)
    return y if bias is None else y + cast(bias, y.dtype).reshape(shape)


def _by_rows(
    x: jax.Array, shape: tuple[int, ...], weight: jax.Array | None, bias: jax.Array | None, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A layer norm over the axes of ``shape``, the last ones; the mean and the inverse deviation with kept
    dimensions."""
    if shape and _kernel_takes(x, weight, bias):
        scale = jnp.ones(shape, x.dtype) if weight is None else weight
        shift = jnp.zeros(shape, x.dtype) if bias is None else bias
        y, *found = layer_norm(x, scale, shift, float(eps))
        mean, inverse = (r.reshape(r.shape + (1,) * len(shape)) for r in found)
        return y, mean, inverse
    y, mean, inverse = standard(x, tuple(range(x.ndim - len(shape), x.ndim)), eps)
    return _affine(y, weight, bias, shape), mean, inverse


@lowers("aten.layer_norm.default", shared=True)
def _layer_norm(
    call: Any,
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> jax.Array:
    dtype = out_dtype(call)
    return cast(_by_rows(cast(x, wide(dtype)), tuple(normalized_shape), weight, bias, eps)[0], dtype)


@lowers("aten.native_layer_norm.default", shared=True)
def _native_layer_norm(
    call: Any, x: jax.Array, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[jax.Array, ...]:
    y, mean, inverse = _by_rows(cast(x, wide(x.dtype)), tuple(normalized_shape), weight, bias, eps)
    results = (y, *map(lax.stop_gradient, (mean, inverse)))
    return tuple(cast(r, out_dtype(call, i)) for i, r in enumerate(results))


@lowers("aten.rms_norm.default", "aten._fused_rms_norm.default", shared=True)
def _rms_norm(
    call: Any,
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None = None,
    eps: float | None = None,
) -> Any:
    fused = call.node.op == "aten._fused_rms_norm.default"
    dtype = out_dtype(call, 0 if fused else None)
    wider = cast(x, wide(x.dtype))
    over = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    # Without eps ATen takes the machine epsilon of the dtype it computes in.
    eps = float(jnp.finfo(wider.dtype).eps) if eps is None else eps
    inverse = lax.rsqrt(jnp.mean(jnp.square(wider), over, keepdims=True) + eps)
    y = cast(_affine(wider * inverse, weight, None, tuple(normalized_shape)), dtype)
    return (y, cast(lax.stop_gradient(inverse), out_dtype(call, 1))) if fused else y


def _grouped(
    x: jax.Array, groups: int, weight: Any, bias: Any, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    count, channels = x.shape[:2]
    if x.size == 0:
        empty = jnp.zeros((count, groups, 1), x.dtype)
        return x, empty, empty
    split = x.reshape(count, groups, -1)
    y, mean, inverse = standard(split, (2,), eps)
    shape = (channels,) + (1,) * (x.ndim - 2)
    return _affine(y.reshape(x.shape), weight, bias, shape), mean, inverse


@lowers("aten.group_norm.default", shared=True)
def _group_norm(
    call: Any,
    x: jax.Array,
    num_groups: int,
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> jax.Array:
    dtype = out_dtype(call)
    return cast(_grouped(cast(x, wide(dtype)), num_groups, weight, bias, eps)[0], dtype)


@lowers("aten.native_group_norm.default")
def _native_group_norm(
    call: Any, x: jax.Array, weight: Any, bias: Any, n: int, c: int, hw: int, group: int, eps: float
) -> tuple[jax.Array, ...]:
    results = _grouped(cast(x, wide(x.dtype)), group, weight, bias, eps)
    return tuple(cast(r, out_dtype(call, i)).reshape(call.out[i].shape) for i, r in enumerate(results))


def _per_channel(x: jax.Array, axis: int = 1) -> tuple[int, ...]:
    return (-1,) + (1,) * (x.ndim - 1 - axis % x.ndim)


def _moved(running: jax.Array, now: jax.Array, momentum: float) -> jax.Array:
    """A running statistic after one batch, not yet rounded. Nothing flows back through it."""
    kind = wide(running.dtype)
    now = cast(lax.stop_gradient(now), kind)
    return cast(lax.stop_gradient(running), kind) * (1 - momentum) + now * momentum


def _batch_norm(
    given: jax.Array | Last,
    weight: jax.Array | None,
    bias: jax.Array | None,
    running: tuple[jax.Array | None, jax.Array | None],
    training: bool,
    momentum: float,
    eps: float,
    dtype: Any,
) -> tuple[jax.Array | Last, jax.Array | None, jax.Array | None, tuple[Any, Any]]:
    """Result of a dtype, saved mean, saved inverse deviation (None out of training), new running statistics."""
    x, axis = (given.array, -1) if isinstance(given, Last) else (given, 1)
    shape = _per_channel(x, axis)
    wider = cast(x, wide(x.dtype))

    def told(y: jax.Array) -> jax.Array | Last:
        y = cast(_affine(y, weight, bias, shape), dtype)
        return Last(y) if isinstance(given, Last) else y

    if not training:
        mean, variance = (cast(r, wide(r.dtype)).reshape(shape) for r in running if r is not None)
        inverse = lax.rsqrt(variance + eps)
        return told((wider - mean) * inverse), None, None, running
    over = tuple(d for d in range(x.ndim) if d != axis % x.ndim)
    count = int(np.prod([x.shape[d] for d in over]))
    if axis % x.ndim == x.ndim - 1 and _kernel_takes(x, weight, bias):
        scale = jnp.ones(x.shape[-1], x.dtype) if weight is None else weight
        shift = jnp.zeros(x.shape[-1], x.dtype) if bias is None else bias
        norm = Norm(x, scale, shift, spread(x, float(eps)))
        mean, inverse, variance, _ = norm.spread
        new = running
        if running[0] is not None and running[1] is not None:
            unbiased = variance * (count / max(count - 1, 1))
            new = (_moved(running[0], mean, momentum), _moved(running[1], unbiased, momentum))
        y = cast(normalised(norm), dtype)
        if not isinstance(given, Last):
            return y, mean, inverse, new
        return Normed(y, norm) if y.dtype == x.dtype else Last(y), mean, inverse, new
    y, mean, inverse = standard(wider, over, eps)
    mean, inverse = mean.reshape(-1), inverse.reshape(-1)
    new: tuple[Any, Any] = running
    if running[0] is not None and running[1] is not None:
        away = lax.stop_gradient(wider - mean.reshape(shape))
        unbiased = jnp.sum(away * away, over) / max(count - 1, 1)
        new = (_moved(running[0], mean, momentum), _moved(running[1], unbiased, momentum))
    return told(y), mean, inverse, new


def _kernel_takes(x: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> bool:
    """Whether the extension's kernel takes this batch: float32 all of it, and more than nothing."""
    given = [a for a in (x, weight, bias) if a is not None]
    return (
        backwards_once() and may_call() and x.size > 0 and {a.dtype for a in given} == {jnp.dtype("float32")}
    )


@lowers("aten._native_batch_norm_legit_functional.default", aware=True, shared=True)
def _batch_norm_functional(
    call: Any,
    x: jax.Array | Last,
    weight: Any,
    bias: Any,
    running_mean: jax.Array,
    running_var: jax.Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, ...]:
    given = (x, weight, bias, (running_mean, running_var))
    y, mean, inverse, new = _batch_norm(*given, training, momentum, eps, out_dtype(call, 0))
    saved = [_saved(call, i, value) for i, value in ((1, mean), (2, inverse))]
    # ATen declares the new statistics in float32 when x is half precision; the write to the buffer rounds them.
    return y, *saved, *(cast(n, out_dtype(call, 3 + i)) for i, n in enumerate(new))


def _saved(call: Any, index: int, value: jax.Array | None) -> jax.Array:
    kind = out_dtype(call, index)
    # Saved for torch's own backward pass: nothing flows back through it.
    return jnp.zeros(call.out[index].shape, kind) if value is None else cast(lax.stop_gradient(value), kind)


@lowers("aten._batch_norm_with_update_functional.default", aware=True)
def _batch_norm_with_update(
    call: Any,
    x: jax.Array | Last,
    weight: Any,
    bias: Any,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, ...]:
    given = (x, weight, bias, (running_mean, running_var))
    y, mean, inverse, new = _batch_norm(*given, True, momentum, eps, out_dtype(call, 0))
    reserve = jnp.zeros(call.out[3].shape, out_dtype(call, 3))
    moved = (cast(n, out_dtype(call, 4 + i)) for i, n in enumerate(new))
    return y, _saved(call, 1, mean), _saved(call, 2, inverse), reserve, *moved


@lowers("aten._native_batch_norm_legit.no_stats", aware=True)
def _batch_norm_no_stats(
    call: Any, x: jax.Array | Last, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[jax.Array, ...]:
    y, mean, inverse, _ = _batch_norm(x, weight, bias, (None, None), True, momentum, eps, out_dtype(call, 0))
    return y, _saved(call, 1, mean), _saved(call, 2, inverse)


@lowers("aten._native_batch_norm_legit_no_training.default", aware=True)
def _batch_norm_no_training(
    call: Any,
    x: jax.Array | Last,
    weight: Any,
    bias: Any,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, ...]:
    given = (x, weight, bias, (running_mean, running_var))
    y, _, _, _ = _batch_norm(*given, False, momentum, eps, out_dtype(call, 0))
    return y, _saved(call, 1, None), _saved(call, 2, None)


@lowers("aten.batch_norm.default", aware=True)
def _batch_norm_eval(
    call: Any,
    x: jax.Array | Last,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> jax.Array:
    if training and running_mean is not None:
        raise refuse(
            "op",
            "aten.batch_norm in training writes its running statistics in place",
            call.node.where,
            "lower the functional form (_native_batch_norm_legit_functional): run run_decompositions({}) on the export",
        )
    given = (x, weight, bias, (running_mean, running_var))
    return _batch_norm(*given, training, momentum, eps, out_dtype(call))[0]


@lowers("aten.instance_norm.default")
def _instance_norm(
    call: Any,
    x: jax.Array,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> jax.Array:
    dtype = out_dtype(call)
    if not use_input_stats:
        return _batch_norm(x, weight, bias, (running_mean, running_var), False, momentum, eps, dtype)[0]
    if running_mean is not None:
        raise refuse(
            "op",
            "instance_norm that tracks running statistics writes them in place in training",
            call.node.where,
            "use track_running_stats=False, or call .eval() on that layer",
        )
    y, _, _ = standard(cast(x, wide(dtype)), tuple(range(2, x.ndim)), eps)
    return cast(_affine(y, weight, bias, _per_channel(x)), dtype)


@lowers("aten._weight_norm.default", "aten._weight_norm_interface.default")
def _weight_norm(call: Any, v: jax.Array, g: jax.Array, dim: int = 0) -> Any:
    pair = call.node.op == "aten._weight_norm_interface.default"
    dtype = out_dtype(call, 0 if pair else None)
    wider = cast(v, wide(v.dtype))
    over = (
        tuple(range(v.ndim))
        if dim == -1 and not pair
        else tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    )
    norm = vector_norm(wider, 2.0, over, True)
    weight = cast(wider * (cast(g, wider.dtype) / norm), dtype)
    return (weight, cast(norm, out_dtype(call, 1))) if pair else weight


@lowers("aten.renorm.default")
def _renorm(call: Any, x: jax.Array, p: float, dim: int, maxnorm: float) -> jax.Array:
    dtype = out_dtype(call)
    wider = cast(x, wide(dtype))
    over = tuple(d for d in range(x.ndim) if d != dim % x.ndim)
    norm = vector_norm(wider, float(p), over, True)
    factor = jnp.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1)
    return cast(wider * factor, dtype)
