"""Attention by a kernel of ours (bridge/kernels): in blocks of rows, its scores in no memory, its gradient its own.

The plain form writes (L, S) scores of every head, their softmax and both gradients to memory and reads them again. For
1,500 positions and 6 heads that is 54 MB each. Only where a step is made and runs here; whatever is captured, exported
or differentiated forwards is the plain form.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.kernels.attentions import Sizes, attended, of_attended
from detente.bridge.kernels.build import may_call
from detente.bridge.kernels.trials import ATTENTION
from detente.bridge.lower.backwards import backwards_once

# Scores of a head: of fewer the plain form is as fast (GPT-2's 64 x 64: 2.3 ms for 2.8; 128 x 128: 7.4 for 3.6).
LEAST = 1 << 13


def is_taken(query: Any, key: Any, value: Any, mask: Any, dropout: float) -> bool:
    """Whether the kernel takes this attention: (B, H, L, D) in float32, without a mask of its own."""
    if not backwards_once() or mask is not None or not 0 <= dropout < 1:
        return False
    shapes = [query.shape, key.shape, value.shape]
    return (
        {t.dtype for t in (query, key, value)} == {jnp.dtype("float32")}
        and {len(s) for s in shapes} == {4}
        and len({s[:2] for s in shapes}) == 1
        and query.shape[3] == key.shape[3]
        and key.shape[2] == value.shape[2]
        and min(prod(s) for s in shapes) > 0
        and query.shape[2] * key.shape[2] >= LEAST
        and may_call(ATTENTION)
    )


def fused_attention(
    query: Any, key: Any, value: Any, keep: Any, causal: bool, scale: float, dropout: float
) -> Any:
    """(B, H, L, E). ``keep`` (B, H, L, S), of bools, is what ``dropout`` keeps; None where nothing is dropped."""
    query, key, value = (jnp.swapaxes(t, 1, 2) for t in (query, key, value))
    sizes = Sizes.of(query.shape, value.shape, causal, scale, dropout)
    keep = jnp.ones((1,), bool) if keep is None else keep
    return jnp.swapaxes(_fused(query, key, value, keep, sizes), 1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _fused(query: Any, key: Any, value: Any, keep: Any, sizes: Sizes) -> Any:
    return attended(sizes, query, key, value, keep)[0]


def _forward(query: Any, key: Any, value: Any, keep: Any, sizes: Sizes) -> tuple[Any, Any]:
    result, logs = attended(sizes, query, key, value, keep)
    return result, (query, key, value, keep, result, logs)


def _backward(sizes: Sizes, held: Any, gradient: Any) -> tuple[Any, Any, Any, None]:
    return (*of_attended(sizes, held, gradient), None)


_fused.defvjp(_forward, _backward)
