"""The feed-forward block with a dropout whose keys are state of the module, which no weight rule names."""

from __future__ import annotations

import jax
from flax import nnx

from detente.workloads.ffn import in_flax
from detente.workloads.flax_parts.layers import Dtypes
from detente.workloads.workload import Size

loss, weights = in_flax.loss, in_flax.weights


class FeedForward(in_flax.FeedForward):
    def __init__(self, hidden: int, inner: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        super().__init__(hidden, inner, dtypes=dtypes, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.c_proj(self.drop(nnx.gelu(self.c_fc(x), approximate=True)))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    return FeedForward(size["hidden"], size["inner"], dtypes=Dtypes(parameters, compute), rngs=nnx.Rngs(0))
