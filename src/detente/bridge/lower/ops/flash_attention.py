"""Attention by cuDNN's kernel on an NVIDIA GPU, where half-precision operands are multiplied: its scores in no memory.

The plain form writes (L, S) scores of every head in float32, their softmax and both gradients, and reads them again: of
8 x 12 heads of 1,024 positions, forwards and backwards, 1.59 ms beside 0.32 on an H100 (docs/results/bridge-on-gpu.md).
Only where a step is made and runs here; whatever is captured, exported or differentiated forwards is the plain form,
and so is what has dropout: cuDNN draws numbers of its own, and a step's are those that eager PyTorch can draw again.

How it can fail: what cuDNN takes moves with its release and the GPU. It says so when it is asked to, and the plain form
is traced in its place.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.kernels.build import declined
from detente.bridge.lower.backwards import backwards_once

# Scores of a head from which on the kernel is taken: of 128 x 128 the plain form is faster by a half, of 197 x 197 the
# kernel is.
LEAST = 1 << 15
WIDEST = 128
EARLIEST = 8.0


def is_taken(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool) -> bool:
    """Whether the kernel may take this attention: (B, H, L, D) in half precision, without a mask of its own."""
    if mask is not None or dropout > 0 or declined():
        return False
    if not (backwards_once() and _has_kernel()):
        return False
    shapes = [query.shape, key.shape, value.shape]
    return (
        len({t.dtype for t in (query, key, value)}) == 1
        and query.dtype in (jnp.bfloat16, jnp.float16)
        and {len(s) for s in shapes} == {4}
        and len({s[:2] for s in shapes}) == 1
        and len({s[3] for s in shapes}) == 1
        and query.shape[3] % 8 == 0
        and query.shape[3] <= WIDEST
        and key.shape[2] == value.shape[2]
        and (not causal or query.shape[2] == key.shape[2])
        and query.shape[2] * key.shape[2] >= LEAST
    )


def flash_attention(query: Any, key: Any, value: Any, causal: bool, scale: float) -> Any | None:
    """(B, H, L, D) in the operands' dtype; None where cuDNN says that it takes no such thing."""
    rows = query.shape[2]
    lengths = {}
    if rows % 2 or key.shape[2] % 2:
        # cuDNN's gradient takes even lengths: one position more, which is no position.
        batch = query.shape[0]
        lengths = {
            "query_seq_lengths": jnp.full((batch,), rows, jnp.int32),
            "key_value_seq_lengths": jnp.full((batch,), key.shape[2], jnp.int32),
        }
        query, key, value = (_even(t) for t in (query, key, value))
    try:
        found = jax.nn.dot_product_attention(
            *(jnp.swapaxes(t, 1, 2) for t in (query, key, value)),
            scale=scale, is_causal=causal, implementation="cudnn", **lengths,
        )  # fmt: skip
    except (NotImplementedError, RuntimeError, ValueError):
        return None
    return jnp.swapaxes(found, 1, 2)[:, :, :rows]


def _even(t: jax.Array) -> jax.Array:
    return jnp.pad(t, ((0, 0), (0, 0), (0, t.shape[2] % 2), (0, 0)))


def _has_kernel() -> bool:
    """An NVIDIA GPU from Ampere on: JAX calls every GPU ``gpu``, and only NVIDIA's have a compute capability."""
    if jax.default_backend() != "gpu":
        return False
    capability = str(getattr(jax.devices()[0], "compute_capability", "0"))
    return capability.replace(".", "", 1).isdigit() and float(capability) >= EARLIEST
