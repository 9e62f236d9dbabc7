"""Layer normalisation by the extension (kernels/layer_norm.cc), as it is called in a program: float32."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax

from detente.bridge.kernels.targets import LAYER_NORM, OF_LAYER_NORM, call


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """``x`` normalised over its last axes, those of ``weight`` and ``bias`` (which it is multiplied by, and which is
    added); the mean, and one over the root of the variance plus ``eps``, of the shape of what is in front of them.
    Nothing flows back through the last two."""
    outer = x.shape[: x.ndim - weight.ndim]
    y, mean, inverse = call(
        LAYER_NORM, [x.shape, outer, outer], x, weight, bias, eps=eps, **_sizes(x, weight)
    )
    return y, mean, inverse


def _forward(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any]:
    results = layer_norm(x, weight, bias, eps)
    return results, (x, weight, *results[1:])


def _backward(eps: float, held: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    x, weight = held[:2]
    shapes = [x.shape, weight.shape, weight.shape]
    return tuple(call(OF_LAYER_NORM, shapes, *held, gradients[0], **_sizes(x, weight)))


layer_norm.defvjp(_forward, _backward)


def _sizes(x: Any, weight: Any) -> dict[str, int]:
    columns = math.prod(weight.shape)
    return {"rows": x.size // columns, "columns": columns}
