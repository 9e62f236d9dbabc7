"""Batch normalisation in training by the extension (kernels/batch_norm.cc), as it is called in a program: float32,
channels last."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from detente.bridge.kernels.targets import BATCH_NORM, OF_BATCH_NORM, call


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def batch_norm(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    """``x`` (..., C) normalised over all axes but the last, times ``weight`` (C) plus ``bias`` (C); the mean, one over
    the root of the variance plus ``eps``, and the variance (biased). Nothing flows back through the last three."""
    channels = (x.shape[-1],)
    y, *rest = call(
        BATCH_NORM, [x.shape, channels, channels, channels], x, weight, bias, eps=eps, **_sizes(x)
    )
    mean, inverse, variance = rest
    return y, mean, inverse, variance


def _forward(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any]:
    results = batch_norm(x, weight, bias, eps)
    return results, (x, weight, results[1], results[2])


def _backward(eps: float, held: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    x = held[0]
    channels = (x.shape[-1],)
    return tuple(call(OF_BATCH_NORM, [x.shape, channels, channels], *held, gradients[0], **_sizes(x)))


batch_norm.defvjp(_forward, _backward)


def _sizes(x: Any) -> dict[str, int]:
    return {"rows": x.size // x.shape[-1], "channels": x.shape[-1]}
