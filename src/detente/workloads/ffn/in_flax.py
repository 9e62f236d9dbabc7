"""``ffn`` in Flax NNX, in the style of the MLP of the guide "Flax basics" (flax.readthedocs.io, nnx_basics)."""

from __future__ import annotations

import jax
from flax import nnx

from detente.workloads.flax_parts.layers import Dtypes, linear
from detente.workloads.flax_parts.losses import of_target as loss
from detente.workloads.weight_tables import LINEAR, rules_of
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class FeedForward(nnx.Module):
    """x (..., hidden) to (..., hidden) through ``inner``, with the tanh form of GELU between."""

    def __init__(self, hidden: int, inner: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.c_fc = linear(hidden, inner, dtypes, rngs)
        self.c_proj = linear(inner, hidden, dtypes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.c_proj(nnx.gelu(self.c_fc(x), approximate=True))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` changes nothing: there is one layer."""
    return FeedForward(size["hidden"], size["inner"], dtypes=Dtypes(parameters, compute), rngs=nnx.Rngs(0))


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    return tuple(rules_of({"c_fc": LINEAR, "c_proj": LINEAR}))
