"""Padding: constant, reflect, replicate, circular. Negative pads cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.dtypes import cast
from detente.bridge.lower.table import lowers

_NUMPY_MODE = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pairs(x: jax.Array, pad: Sequence[int]) -> list[tuple[int, int]]:
    """torch lists pads from the last dimension backwards; this is one (low, high) pair per dimension."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs


@lowers("aten.constant_pad_nd.default")
def constant_pad(call: Any, x: jax.Array, pad: Sequence[int], value: Any = 0) -> jax.Array:
    """``x`` with a constant border; the value is converted to the dtype of ``x`` as ATen's fill does."""
    fill = jnp.asarray(value).astype(x.dtype) if not isinstance(value, jax.Array) else cast(value, x.dtype)
    return lax.pad(x, fill, [(low, high, 0) for low, high in _pairs(x, pad)])


def _indexed(x: jax.Array, pairs: Sequence[tuple[int, int]], mode: str) -> jax.Array:
    for axis, (low, high) in enumerate(pairs):
        if low == high == 0:
            continue
        places = np.arange(x.shape[axis])
        if (
            mode == "circular"
        ):  # what is left after the cut goes round; the other modes look at what was cut, too
            places = _cut(places, low, high)
        places = np.pad(places, (max(low, 0), max(high, 0)), mode=_NUMPY_MODE[mode])  # type: ignore[call-overload]
        if mode != "circular":
            places = _cut(places, low, high)
        x = jnp.take(x, places, axis=axis)
    return x


def _cut(places: np.ndarray, low: int, high: int) -> np.ndarray:
    return places[max(-low, 0) : len(places) - max(-high, 0)]


@lowers("aten.pad.default")
def _pad(call: Any, x: jax.Array, pad: Sequence[int], mode: str = "constant", value: Any = None) -> jax.Array:
    if mode == "constant":
        return constant_pad(call, x, pad, 0 if value is None else value)
    return _indexed(x, _pairs(x, pad), mode)


for _n in (1, 2, 3):
    lowers(f"aten.reflection_pad{_n}d.default")(lambda call, x, pad: _indexed(x, _pairs(x, pad), "reflect"))
    lowers(f"aten.replication_pad{_n}d.default")(
        lambda call, x, pad: _indexed(x, _pairs(x, pad), "replicate")
    )
lowers("aten._pad_circular.default")(lambda call, x, pad: _indexed(x, _pairs(x, pad), "circular"))
