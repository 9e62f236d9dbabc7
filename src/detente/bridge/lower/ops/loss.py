"""Losses. Labels out of range are faults; half precision is computed in float32 and rounded once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.dtypes import cast, compute, is_float, out_dtype, wide
from detente.bridge.lower.ops.activation import log_sigmoid
from detente.bridge.lower.ops.arithmetic import _xlogy
from detente.bridge.lower.ops.pointwise import absolute
from detente.bridge.lower.ops.softmax import log_total
from detente.bridge.lower.table import lowers

NONE, MEAN, SUM = 0, 1, 2


def reduced(call: Any, losses: jax.Array, reduction: int, output: int | None = None) -> jax.Array:
    """``losses`` by ATen's code: 0 none, 1 mean (NaN for an empty batch), 2 sum; rounded to the result's dtype."""
    if reduction == MEAN:
        losses = jnp.mean(losses)
    elif reduction == SUM:
        losses = jnp.sum(losses)
    return cast(losses, out_dtype(call, output))


@jax.custom_jvp
def pick(x: jax.Array, labels: jax.Array) -> jax.Array:
    """``x[..., labels]``: one element per row. Its transpose is a select that fuses, not a scatter."""
    return jnp.squeeze(jnp.take_along_axis(x, labels[..., None], -1, mode="clip"), -1)


@pick.defjvp
def _pick_jvp(primals: Any, tangents: Any) -> Any:
    x, labels = primals
    chosen = lax.broadcasted_iota(labels.dtype, x.shape, x.ndim - 1) == labels[..., None]
    return pick(x, labels), jnp.sum(jnp.where(chosen, tangents[0], 0), -1)


def _checked_labels(
    call: Any, labels: jax.Array, classes: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    """Labels made safe, and which of them count."""
    counts = labels != ignore_index
    outside = counts & ((labels < 0) | (labels >= classes))
    call.fault(jnp.any(outside), f"IndexError: Target is out of bounds: a label is not in [0, {classes})")
    return jnp.where(counts & ~outside, labels, 0), counts


def _class_weights(weight: jax.Array | None, labels: jax.Array, counts: jax.Array, kind: Any) -> jax.Array:
    """The weight of each element: that of its class, 0 where ignored."""
    if weight is None:
        return counts.astype(kind)
    return jnp.where(counts, jnp.take(cast(weight, kind), labels, mode="clip"), 0)


def _weighted(call: Any, losses: jax.Array, weights: jax.Array, reduction: int) -> jax.Array:
    losses = losses * weights
    if reduction == MEAN:
        return cast(jnp.sum(losses) / jnp.sum(weights), out_dtype(call))
    return reduced(call, losses, reduction)


def _classes_last(x: jax.Array) -> jax.Array:
    return x if x.ndim <= 2 else jnp.moveaxis(x, 1, -1)


@lowers("aten.cross_entropy_loss.default")
def _cross_entropy(
    call: Any,
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> jax.Array:
    kind = wide(x.dtype)
    x = _classes_last(cast(x, kind))
    classes = x.shape[-1]
    total = log_total(x, x.ndim - 1)
    weights = None if weight is None else cast(weight, kind)
    if is_float(target.dtype):
        target = _classes_last(cast(target, kind))
        if label_smoothing:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        log_probability = x - total[..., None]
        losses = -jnp.sum(target * log_probability * (1 if weights is None else weights), -1)
        if reduction == MEAN:
            # The mean is over the batch alone, whatever the class weights are.
            return cast(jnp.sum(losses) / max(losses.size, 1) if losses.size else jnp.nan, out_dtype(call))
        return reduced(call, losses, reduction)
    labels, counts = _checked_labels(call, target, classes, ignore_index)
    each = _class_weights(weight, labels, counts, kind)
    losses = total - pick(x, labels)
    if not label_smoothing:
        # An ignored row gives 0 even where its loss is infinite.
        return _weighted(call, jnp.where(counts, losses, 0), each, reduction)
    smooth = (
        total * classes - jnp.sum(x, -1)
        if weights is None
        else total * jnp.sum(weights) - jnp.sum(x * weights, -1)
    )
    smooth = jnp.where(counts, smooth, 0) * (label_smoothing / classes)
    losses = (1 - label_smoothing) * jnp.where(counts, losses, 0) * each + smooth
    if reduction == MEAN:
        return cast(jnp.sum(losses) / jnp.sum(each), out_dtype(call))
    return reduced(call, losses, reduction)


def _nll(
    call: Any, x: jax.Array, target: jax.Array, weight: Any, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    kind = wide(x.dtype)
    x = _classes_last(cast(x, kind))
    labels, counts = _checked_labels(call, target, x.shape[-1], ignore_index)
    return jnp.where(counts, -pick(x, labels), 0), _class_weights(weight, labels, counts, kind)


@lowers("aten.nll_loss.default", "aten.nll_loss2d.default", "aten.nll_loss_nd.default")
def _nll_loss(
    call: Any,
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> jax.Array:
    return _weighted(call, *_nll(call, x, target, weight, ignore_index), reduction)


@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def _nll_loss_forward(
    call: Any, x: jax.Array, target: jax.Array, weight: Any, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    losses, weights = _nll(call, x, target, weight, ignore_index)
    total = cast(jnp.sum(weights) if reduction != NONE else jnp.zeros((), weights.dtype), out_dtype(call, 1))
    losses = losses * weights
    if reduction == MEAN:
        losses = jnp.sum(losses) / jnp.sum(weights)
    elif reduction == SUM:
        losses = jnp.sum(losses)
    return cast(losses, out_dtype(call, 0)), total


def _pair(function: Any) -> Any:
    """An entry for ``function(x, target, *numbers)`` elementwise, with a reduction code in ``position``."""

    def lower(call: Any, x: jax.Array, target: jax.Array, *args: Any, **named: Any) -> jax.Array:
        kind = out_dtype(call)
        operands = (cast(v, compute(v, kind)) for v in (x, target))
        losses, reduction = function(*operands, *args, **named)
        return reduced(call, losses, reduction)

    return lower


def _at_least_zero(x: jax.Array) -> jax.Array:
    """``clamp_min(x, 0)``: at the bound the gradient is x's, and NaN passes without one."""
    return jnp.where(x >= 0, x, lax.stop_gradient(jnp.maximum(x, 0)))


def _above_zero(x: jax.Array) -> jax.Array:
    """The margin losses' own kernel: at the bound the gradient is 0, and NaN counts as no loss."""
    return jnp.where(x > 0, x, 0)


def _mse(x: jax.Array, y: jax.Array, reduction: int = MEAN) -> Any:
    return jnp.square(x - y), reduction


def _l1(x: jax.Array, y: jax.Array, reduction: int = MEAN) -> Any:
    return absolute(x - y), reduction


def _smooth_l1(x: jax.Array, y: jax.Array, reduction: int = MEAN, beta: float = 1.0) -> Any:
    away = absolute(x - y)
    if beta == 0:
        return away, reduction
    near = jnp.where(away >= beta, 0, away)  # kept out of the square: an infinity's gradient would be NaN
    return jnp.where(away >= beta, away - 0.5 * beta, 0.5 * near * near / beta), reduction


def _huber(x: jax.Array, y: jax.Array, reduction: int = MEAN, delta: float = 1.0) -> Any:
    away = absolute(x - y)
    near = jnp.where(away > delta, 0, away)
    return jnp.where(away > delta, delta * (away - 0.5 * delta), 0.5 * near * near), reduction


def _soft_margin(x: jax.Array, y: jax.Array, reduction: int = MEAN) -> Any:
    return jax.nn.softplus(-y * x), reduction


def _kl_div(x: jax.Array, y: jax.Array, reduction: int = MEAN, *, log_target: bool = False) -> Any:
    if log_target:
        return jnp.exp(y) * (y - x), reduction
    return _xlogy(y, y) - y * x, reduction


def _poisson_nll(x: jax.Array, y: jax.Array, log_input: bool, full: bool, eps: float, reduction: int) -> Any:
    losses = jnp.exp(x) - y * x if log_input else x - y * jnp.log(x + eps)
    if full:
        stirling = y * jnp.log(y) - y + 0.5 * jnp.log(2 * jnp.pi * y)
        losses = losses + jnp.where(y <= 1, 0, jnp.where(y <= 1, 0, stirling))
    return losses, reduction


def _hinge_embedding(x: jax.Array, y: jax.Array, margin: float = 1.0, reduction: int = MEAN) -> Any:
    apart = jnp.where(y != 1, _at_least_zero(margin - x), 0)
    return apart + jnp.where(y != -1, x, 0), reduction


for _name, _function in {
    "mse_loss": _mse,
    "l1_loss": _l1,
    "smooth_l1_loss": _smooth_l1,
    "huber_loss": _huber,
    "soft_margin_loss": _soft_margin,
    "kl_div": _kl_div,
    "poisson_nll_loss": _poisson_nll,
    "hinge_embedding_loss": _hinge_embedding,
}.items():
    lowers(f"aten.{_name}.default")(_pair(_function))


@lowers("aten.binary_cross_entropy.default")
def _bce(
    call: Any, x: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = MEAN
) -> jax.Array:
    kind = wide(x.dtype)
    p, y = cast(x, kind), cast(target, kind)
    for name, values in (("input", p), ("target", y)):
        outside = jnp.any((values < 0) | (values > 1))
        call.fault(outside, f"RuntimeError: all elements of {name} should be between 0 and 1")
    losses = -(y * _log_at_least(p) + (1 - y) * _log_at_least(1 - p))
    return reduced(call, losses if weight is None else losses * cast(weight, kind), reduction)


@jax.custom_jvp
def _log_at_least(p: jax.Array) -> jax.Array:
    """log(p) clamped at -100; its gradient is 1/p with p(1-p) kept above 1e-12, as ATen's backward does."""
    return jnp.maximum(jnp.log(p), -100.0)


@_log_at_least.defjvp
def _log_at_least_jvp(primals: Any, tangents: Any) -> Any:
    (p,), (t,) = primals, tangents
    return _log_at_least(p), t * (1 - p) / jnp.maximum(p * (1 - p), 1e-12)


@lowers("aten.binary_cross_entropy_with_logits.default")
def _bce_logits(
    call: Any,
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    pos_weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    kind = wide(x.dtype)
    x, y = cast(x, kind), cast(target, kind)
    positive = 1 if pos_weight is None else 1 + (cast(pos_weight, kind) - 1) * y
    losses = (1 - y) * x - positive * log_sigmoid(x)
    return reduced(call, losses if weight is None else losses * cast(weight, kind), reduction)


@lowers("aten.margin_ranking_loss.default")
def _margin_ranking(
    call: Any, a: jax.Array, b: jax.Array, target: jax.Array, margin: float = 0.0, reduction: int = MEAN
) -> jax.Array:
    kind = wide(out_dtype(call))
    a, b, target = (cast(t, kind) for t in (a, b, target))
    return reduced(call, _at_least_zero(-target * (a - b) + margin), reduction)


@lowers("aten.cosine_embedding_loss.default")
def _cosine_embedding(
    call: Any, a: jax.Array, b: jax.Array, target: jax.Array, margin: float = 0.0, reduction: int = MEAN
) -> jax.Array:
    kind = wide(out_dtype(call))
    a, b = cast(a, kind), cast(b, kind)
    dot, aa, bb = (jnp.sum(t, -1) for t in (a * b, a * a + 0.0, b * b + 0.0))
    cosine = dot / jnp.sqrt((aa + 1e-12) * (bb + 1e-12))
    losses = jnp.where(target == 1, 1 - cosine, jnp.where(target == -1, _at_least_zero(cosine - margin), 0))
    return reduced(call, losses, reduction)


def _triplet_distance(a: jax.Array, b: jax.Array, p: float, eps: float) -> jax.Array:
    from detente.bridge.lower.ops.reduce import vector_norm

    return vector_norm(a - b + eps, p, (a.ndim - 1,), False)


@lowers("aten.triplet_margin_loss.default")
def _triplet(
    call: Any,
    anchor: jax.Array,
    positive: jax.Array,
    negative: jax.Array,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = MEAN,
) -> jax.Array:
    kind = wide(out_dtype(call))
    a, b, c = (cast(t, kind) for t in (anchor, positive, negative))
    near, far = _triplet_distance(a, b, p, eps), _triplet_distance(a, c, p, eps)
    if swap:
        far = jnp.minimum(far, _triplet_distance(b, c, p, eps))
    return reduced(call, _at_least_zero(margin + near - far), reduction)


@lowers("aten.multi_margin_loss.default")
def _multi_margin(
    call: Any,
    x: jax.Array,
    target: jax.Array,
    p: int = 1,
    margin: float = 1.0,
    weight: jax.Array | None = None,
    reduction: int = MEAN,
) -> jax.Array:
    kind = wide(out_dtype(call))
    x = cast(x, kind)
    batch, target = jnp.atleast_2d(x), jnp.atleast_1d(target)
    labels, _ = _checked_labels(call, target, batch.shape[-1], -(2**31))
    gap = _above_zero(margin - pick(batch, labels)[:, None] + batch) ** int(p)
    if weight is not None:
        gap = gap * jnp.take(cast(weight, kind), labels)[:, None]
    other = lax.broadcasted_iota(labels.dtype, batch.shape, 1) != labels[:, None]
    losses = jnp.sum(jnp.where(other, gap, 0), -1) / batch.shape[-1]
    return reduced(call, losses.reshape(x.shape[:-1]), reduction)


@lowers("aten.multilabel_margin_loss.default")
def _multilabel_margin(call: Any, x: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    kind = wide(out_dtype(call))
    x = cast(x, kind)
    batch, labels = jnp.atleast_2d(x), jnp.atleast_2d(target)
    classes = batch.shape[-1]
    # Labels count up to the first -1.
    counts = jnp.cumsum(labels < 0, -1) == 0
    safe = jnp.where(counts, labels, 0)
    hot = safe[..., None] == lax.iota(labels.dtype, classes)
    positive = jnp.any(hot & counts[..., None], -2)
    own = jnp.take_along_axis(batch, safe, -1)
    gap = _above_zero(1 - own[:, :, None] + batch[:, None, :])
    losses = jnp.sum(jnp.where(counts[:, :, None] & ~positive[:, None, :], gap, 0), (-1, -2)) / classes
    return reduced(call, losses.reshape(x.shape[:-1]), reduction)
