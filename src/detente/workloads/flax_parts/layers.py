"""Layers of Flax NNX with torch's numbers: the dtypes of a definition, linear layers, normalisations, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx


@dataclass(frozen=True)
class Dtypes:
    """``parameters`` are stored as, ``compute`` is what the operands of products are cast to."""

    parameters: str
    compute: str

    def of_products(self) -> dict[str, jnp.dtype]:
        """The arguments that every layer of Flax with a product takes."""
        return {"dtype": jnp.dtype(self.compute), "param_dtype": jnp.dtype(self.parameters)}


def linear(inputs: int, outputs: int, dtypes: Dtypes, rngs: nnx.Rngs, *, bias: bool = True) -> nnx.Linear:
    """x (..., inputs) to (..., outputs)."""
    return nnx.Linear(inputs, outputs, use_bias=bias, rngs=rngs, **dtypes.of_products())


def to_heads(
    inputs: int, heads: int, each: int, dtypes: Dtypes, rngs: nnx.Rngs, *, bias: bool = True
) -> nnx.LinearGeneral:
    """x (..., inputs) to (..., heads, each): the projections of nnx.MultiHeadAttention."""
    return nnx.LinearGeneral(inputs, (heads, each), use_bias=bias, rngs=rngs, **dtypes.of_products())


def from_heads(
    heads: int, each: int, outputs: int, dtypes: Dtypes, rngs: nnx.Rngs, *, bias: bool = True
) -> nnx.LinearGeneral:
    """x (..., heads, each) to (..., outputs)."""
    axis: Sequence[int] = (-2, -1)
    return nnx.LinearGeneral(
        (heads, each), outputs, axis=axis, use_bias=bias, rngs=rngs, **dtypes.of_products()
    )


def embedding(rows: int, hidden: int, dtypes: Dtypes, rngs: nnx.Rngs) -> nnx.Embed:
    """A table that is looked up in the dtype it is stored in, as torch's under autocast."""
    return nnx.Embed(rows, hidden, param_dtype=jnp.dtype(dtypes.parameters), rngs=rngs)


def layer_norm(hidden: int, epsilon: float, dtypes: Dtypes, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Flax's default epsilon is 1e-6. Its fast variance, E[x^2] - E[x]^2, loses digits that torch keeps. Without a
    dtype, LayerNorm computes in the parameters' dtype, as autocast does."""
    return nnx.LayerNorm(
        hidden, epsilon=epsilon, use_fast_variance=False, param_dtype=jnp.dtype(dtypes.parameters), rngs=rngs
    )


def rms_norm(hidden: int, epsilon: float, dtypes: Dtypes, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """x / rms(x) * scale, in at least float32 (Zhang and Sennrich, arXiv:1910.07467)."""
    return nnx.RMSNorm(hidden, epsilon=epsilon, param_dtype=jnp.dtype(dtypes.parameters), rngs=rngs)


def tied_logits(x: jax.Array, table: nnx.Embed, compute: str) -> jax.Array:
    """x (..., hidden) against every row of the token table. ``Embed.attend`` would multiply in the table's dtype, not
    in ``compute``."""
    return x.astype(compute) @ table.embedding[...].astype(compute).T
