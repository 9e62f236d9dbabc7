"""as_strided: a view by explicit strides, read as if the input lay contiguous in memory.

The neutral graph has no strides. Capture puts the input in the order of its memory (``capture/strides.py``), so the
places that are read are known while lowering and are one static gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from detente.bridge.lower.dtypes import cast
from detente.bridge.lower.table import lowers


def _places(size: Sequence[int], stride: Sequence[int], offset: int | None) -> np.ndarray:
    places = np.asarray(offset or 0)
    for n, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n) * step
    return places


@lowers("aten.as_strided.default", "aten.as_strided_copy.default", note="the input is taken as contiguous")
def _as_strided(
    call: Any, x: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> jax.Array:
    return x.reshape(-1)[_places(size, stride, storage_offset)]


@lowers("aten.as_strided_scatter.default", note="the input is taken as contiguous")
def _as_strided_scatter(
    call: Any,
    x: jax.Array,
    source: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    places = _places(size, stride, storage_offset)
    return x.reshape(-1).at[places].set(cast(source, x.dtype)).reshape(x.shape)
