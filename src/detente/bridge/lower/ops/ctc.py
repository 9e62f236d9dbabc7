"""Connectionist temporal classification: the forward recursion in log space as one scan over time.

Graves et al. 2006, eq. 6-8. ``log_probs`` (T, N, C), targets (N, S) or concatenated, lengths (N,).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.dtypes import cast, out_dtype, wide
from detente.bridge.lower.table import lowers

MEAN, SUM = 1, 2


def _padded(targets: jax.Array, lengths: jax.Array, longest: int) -> jax.Array:
    """Concatenated targets as (N, longest)."""
    starts = jnp.cumsum(lengths) - lengths
    places = starts[:, None] + jnp.arange(longest, dtype=lengths.dtype)
    return targets[jnp.clip(places, 0, max(targets.shape[0] - 1, 0))]


def _log_add(*terms: jax.Array) -> jax.Array:
    top = terms[0]
    for term in terms[1:]:
        top = jnp.maximum(top, term)
    top = lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    total = sum(jnp.exp(term - top) for term in terms)
    # log(0) would give a NaN gradient.
    return jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1)) + top, -jnp.inf)


def ctc(
    log_probs: jax.Array, targets: jax.Array, input_lengths: jax.Array, target_lengths: jax.Array, blank: int
) -> jax.Array:
    """Negative log likelihood of each sequence (N,); infinite where no alignment exists."""
    steps, batch, _ = log_probs.shape
    longest = targets.shape[1]
    # Blanks between all labels: 2S + 1 states.
    labels = jnp.full((batch, 2 * longest + 1), blank, targets.dtype).at[:, 1::2].set(targets)
    states = labels.shape[1]
    skips = jnp.zeros((batch, states), bool)
    if states > 2:
        # Of two blanks in a row none is skipped: they are equal. A blank among the labels may be, as in ATen.
        skips = skips.at[:, 2:].set(labels[:, 2:] != labels[:, :-2])
    emitted = jnp.take_along_axis(log_probs, jnp.broadcast_to(labels, (steps, batch, states)), 2)
    first = jnp.arange(states) < 2
    # Without labels only the blank may start.
    first = first[None] & ((jnp.arange(states)[None] < 1) | (target_lengths[:, None] > 0))
    alpha = jnp.where(first, emitted[0], -jnp.inf)

    def advance(alpha: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        emit, t = now
        one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=-jnp.inf)[:, :states]
        two = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=-jnp.inf)[:, :states]
        new = _log_add(alpha, one, jnp.where(skips, two, -jnp.inf)) + emit
        return jnp.where((t < input_lengths)[:, None], new, alpha), None

    alpha, _ = lax.scan(advance, alpha, (emitted[1:], jnp.arange(1, steps, dtype=input_lengths.dtype)))
    last = (2 * target_lengths)[:, None]
    end = jnp.take_along_axis(alpha, last, 1)[:, 0]
    before = jnp.take_along_axis(alpha, jnp.maximum(last - 1, 0), 1)[:, 0]
    return -_log_add(end, jnp.where(target_lengths > 0, before, -jnp.inf))


def _lengths(value: Any) -> jax.Array:
    return value if isinstance(value, jax.Array) else jnp.asarray(np.asarray(value, np.int64))


def _check(call: Any, name: str, lengths: jax.Array, most: int) -> None:
    outside = jnp.any((lengths < 0) | (lengths > most))
    call.fault(outside, f"RuntimeError: ctc_loss: {name} outside [0, {most}]")


@lowers("aten.ctc_loss.Tensor", "aten.ctc_loss.IntList", "detente.ctc_loss.default")
def _ctc_loss(
    call: Any,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array | Sequence[int],
    target_lengths: jax.Array | Sequence[int],
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> jax.Array:
    kind = wide(log_probs.dtype)
    single = log_probs.ndim == 2
    log_probs = cast(log_probs[:, None] if single else log_probs, kind)
    input_lengths, target_lengths = _lengths(input_lengths).reshape(-1), _lengths(target_lengths).reshape(-1)
    _check(call, "input_lengths", input_lengths, log_probs.shape[0])
    _check(call, "target_lengths", target_lengths, targets.shape[-1])
    if targets.ndim == 1:
        targets = targets[None] if single else _padded(targets, target_lengths, targets.shape[0])
    losses = ctc(log_probs, targets, input_lengths, target_lengths, blank)
    # ATen's gradient is that of normalised scores: exp(log_probs) more than the derivative of the recursion. After a
    # log_softmax both are one; a user who leaves it out gets ATen's.
    inside = jnp.arange(log_probs.shape[0])[:, None, None] < jnp.asarray(input_lengths)[None, :, None]
    mass = jnp.sum(jnp.where(inside, jnp.exp(log_probs), 0), (0, 2))
    losses = losses + (mass - lax.stop_gradient(mass))
    if zero_infinity:
        losses = jnp.where(jnp.isinf(losses), 0, losses)
    if reduction == MEAN:
        losses = jnp.mean(losses / jnp.maximum(target_lengths, 1).astype(kind))
    elif reduction == SUM:
        losses = jnp.sum(losses)
    elif single:
        losses = losses[0]
    return cast(losses, out_dtype(call))
