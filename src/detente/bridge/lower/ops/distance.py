"""Distances and similarities: cosine_similarity, pairwise_distance, cdist, pdist."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.dtypes import cast, compute, out_dtype, wide
from detente.bridge.lower.ops.reduce import vector_norm
from detente.bridge.lower.table import lowers


@lowers("aten.cosine_similarity.default")
def _cosine_similarity(call: Any, a: jax.Array, b: jax.Array, dim: int = 1, eps: float = 1e-8) -> jax.Array:
    dtype = out_dtype(call)
    a, b = jnp.broadcast_arrays(cast(a, wide(dtype)), cast(b, wide(dtype)))
    if a.ndim == 0:
        return _cosine_similarity(call, a[None], b[None], 0, eps)
    sizes = []
    for x in (a, b):
        size = vector_norm(x, 2.0, (dim % a.ndim,), True)
        # ATen clamps the norm where no gradient is recorded: it flows through the norm below eps as well.
        sizes.append(jnp.where(size < eps, eps + (size - lax.stop_gradient(size)), size))
    return cast(jnp.sum((a / sizes[0]) * (b / sizes[1]), dim), dtype)


@lowers("aten.pairwise_distance.default")
def _pairwise_distance(
    call: Any, a: jax.Array, b: jax.Array, p: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> jax.Array:
    dtype = out_dtype(call)
    away = cast(a, compute(a, dtype)) - cast(b, compute(b, dtype)) + eps
    return cast(vector_norm(away, float(p), (away.ndim - 1,), keepdim), dtype)


@lowers("aten.cdist.default", "aten._cdist_forward.default")
def _cdist(call: Any, a: jax.Array, b: jax.Array, p: float = 2, compute_mode: int | None = None) -> jax.Array:
    dtype = out_dtype(call)
    away = cast(a, wide(dtype))[..., :, None, :] - cast(b, wide(dtype))[..., None, :, :]
    return cast(vector_norm(away, float(p), (away.ndim - 1,), False).reshape(call.out.shape), dtype)


@lowers("aten.pdist.default", "aten._pdist_forward.default")
def _pdist(call: Any, x: jax.Array, p: float = 2) -> jax.Array:
    dtype = out_dtype(call)
    rows, columns = np.triu_indices(x.shape[0], 1)
    away = cast(x, wide(dtype))[rows] - cast(x, wide(dtype))[columns]
    return cast(vector_norm(away, float(p), (1,), False), dtype)
