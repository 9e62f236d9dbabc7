"""Gradient clipping as torch does it, as pure functions of a gradient tree.

Same arithmetic as ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_`` (torch/nn/utils/clip_grad.py):
the norm of the tensors' norms, and a factor ``max_norm / (norm + 1e-6)`` that is never above one.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from detente.bridge.lower.dtypes import cast, is_complex, wide
from detente.bridge.refusal import refuse

Grads = Mapping[str, jax.Array | None]


def total_norm(grads: Grads, norm_type: float = 2.0) -> jax.Array:
    """The p-norm of all gradients as one vector, 0-d; ``inf`` is the largest magnitude. A stacked gradient
    counts as all of its layers. Zero where there is no gradient."""
    norms = [_norm(g, norm_type).astype(jnp.real(g).dtype) for g in grads.values() if g is not None]
    if not norms:
        return jnp.zeros((), jnp.float32)
    kind = jnp.result_type(*norms)
    return _norm(jnp.stack([cast(n, kind) for n in norms]), norm_type).astype(kind)


def clip_norm(
    grads: Grads, max_norm: float, norm_type: float = 2.0
) -> tuple[dict[str, jax.Array | None], jax.Array]:
    """The gradients scaled so that their norm is at most ``max_norm``, and the norm before. A non-finite norm
    makes them non-finite, as in torch with ``error_if_nonfinite=False``."""
    norm = total_norm(grads, norm_type)
    factor = jnp.minimum(jnp.asarray(max_norm, norm.dtype) / (norm + jnp.asarray(1e-6, norm.dtype)), 1)
    return {name: _scaled(g, factor) for name, g in grads.items()}, norm


def clip_value(grads: Grads, limit: float) -> dict[str, jax.Array | None]:
    """Every entry of every gradient cut to ``[-limit, limit]``; NaN stays. Raises Refused for a complex one."""
    turning = [name for name, g in grads.items() if g is not None and is_complex(g.dtype)]
    if turning:
        raise refuse(
            "optimizer",
            f"clip_value of {turning[0]}, which is complex: torch.clamp has no order of complex numbers",
            hint="take clip_norm",
        )
    return {
        name: None if g is None else jnp.clip(g, jnp.asarray(-limit, g.dtype), jnp.asarray(limit, g.dtype))
        for name, g in grads.items()
    }


def _norm(x: jax.Array, p: float) -> jax.Array:
    size = jnp.abs(cast(x, wide(x.dtype)))
    if p == float("inf"):
        return jnp.max(size, initial=0)
    if p == 2.0:
        return jnp.sqrt(jnp.sum(size * size))
    if p == 1.0:
        return jnp.sum(size)
    return jnp.sum(size**p) ** jnp.asarray(1.0 / p, size.dtype)


def _scaled(grad: jax.Array | None, factor: jax.Array) -> jax.Array | None:
    """``grad * factor`` in the gradient's dtype, formed in ATen's arithmetic type."""
    if grad is None:
        return None
    kind = wide(grad.dtype)
    # a complex gradient is scaled by a real number
    by = factor.astype(jnp.real(grad).dtype) if is_complex(grad.dtype) else cast(factor, kind)
    return cast(cast(grad, kind) * by, grad.dtype)
