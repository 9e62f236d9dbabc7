"""Batch normalisation in training by the extension (kernels/batch_norm.cc), as it is called in a program: float32,
channels last. What is added to it and a ReLU behind are part of the same pass."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax

from detente.bridge.kernels.targets import BATCH_NORM, OF_BATCH_NORM, SPREAD, call


class Spread(NamedTuple):
    """Of each channel (C) of a batch: its mean, one over the root of the variance plus eps, the variance (biased), and
    what the mean lost when it was rounded."""

    mean: Any
    inverse: Any
    variance: Any
    lost: Any


class Norm(NamedTuple):
    """What a normalised batch is made of: ``x`` (..., C), ``weight`` and ``bias`` (C), and how ``x`` is spread."""

    x: Any
    weight: Any
    bias: Any
    spread: Spread


def spread(x: Any, eps: float) -> Spread:
    """How ``x`` (..., C) is spread over all axes but the last. Nothing flows back through it: what ``normalised`` sends
    back to ``x`` holds that."""
    channels = (x.shape[-1],)
    return Spread(*call(SPREAD, [channels] * 4, lax.stop_gradient(x), eps=eps, **_sizes(x)))


def normalised(norm: Norm, beside: Any = None, clamped: bool = False) -> Any:
    """``x`` with mean 0 and variance 1, times ``weight`` plus ``bias``; plus ``beside`` (shaped like ``x``), and not
    below 0 if ``clamped``."""
    return _normalised(clamped, norm.x, norm.weight, norm.bias, norm.spread, beside)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalised(clamped: bool, x: Any, weight: Any, bias: Any, found: Spread, beside: Any) -> Any:
    more = () if beside is None else (beside,)
    of = (x, weight, bias, found.mean, found.inverse, found.lost, *more)
    return call(BATCH_NORM, [x.shape], *of, clamped=clamped, beside=bool(more), **_sizes(x))[0]


def _forward(clamped: bool, x: Any, weight: Any, bias: Any, found: Spread, beside: Any) -> tuple[Any, Any]:
    y = _normalised(clamped, x, weight, bias, found, beside)
    # Two empty trees: whether there was anything beside is no array.
    there = None if beside is None else ()
    return y, (x, weight, found.mean, found.inverse, (y,) if clamped else (), there)


def _backward(clamped: bool, held: tuple[Any, ...], gradient: Any) -> tuple[Any, ...]:
    x, weight, mean, inverse, y, there = held
    channels, more = (x.shape[-1],), there is not None
    of = (x, weight, mean, inverse, gradient, *y)
    shapes = [x.shape, channels, channels, *([x.shape] if more else [])]
    found = call(OF_BATCH_NORM, shapes, *of, clamped=clamped, beside=more, **_sizes(x))
    return *found[:3], None, found[3] if more else None


_normalised.defvjp(_forward, _backward)


def _sizes(x: Any) -> dict[str, int]:
    return {"rows": x.size // x.shape[-1], "channels": x.shape[-1]}
