"""An exponential moving average of the weights, as ``torch.optim.swa_utils.AveragedModel`` keeps it with
``get_ema_multi_avg_fn(decay)``: the first update copies, every later one is ``lerp(average, weight, 1 - decay)``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.lower.dtypes import cast, is_complex, is_float, wide

AVERAGE, COUNT = "#ema", "#ema_count"  # beside the optimizer's leaves of each parameter


def begin(param: jax.Array) -> dict[str, Any]:
    """The leaves of a parameter that was not averaged yet; ``AveragedModel`` begins as a copy."""
    return {AVERAGE: jnp.array(param, copy=True), COUNT: jnp.zeros((), jnp.int32)}


def advance(entry: dict[str, Any], param: jax.Array, decay: float) -> dict[str, Any]:
    """The leaves after one update with the new ``param``; stacked parameters carry a stacked count."""
    average, count = entry[AVERAGE], entry[COUNT]
    first = (count == 0).reshape(count.shape + (1,) * (param.ndim - count.ndim))
    return {AVERAGE: jnp.where(first, param, _lerp(average, param, 1.0 - decay)), COUNT: count + 1}


def _lerp(a: jax.Array, b: jax.Array, weight: float) -> jax.Array:
    if not (is_float(a.dtype) or is_complex(a.dtype)):
        return b
    kind = wide(a.dtype)
    x, y, w = cast(a, kind), cast(b, kind), jnp.asarray(weight, kind)
    # ATen's lerp changes side at one half
    mixed = x + w * (y - x) if abs(weight) < 0.5 else y - (y - x) * (1 - w)
    return cast(mixed, a.dtype)
