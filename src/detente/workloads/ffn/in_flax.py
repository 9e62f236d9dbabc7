"""``ffn`` in Flax NNX, in the style of the MLP of the guide "Flax basics" (flax.readthedocs.io, nnx_basics)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size


class FeedForward(nnx.Module):
    """x (..., hidden) to (..., hidden) through ``inner``."""

    def __init__(self, hidden: int, inner: int, *, parameters: str, compute: str, rngs: nnx.Rngs) -> None:
        dtypes = {"dtype": jnp.dtype(compute), "param_dtype": jnp.dtype(parameters)}
        self.c_fc = nnx.Linear(hidden, inner, rngs=rngs, **dtypes)
        self.c_proj = nnx.Linear(inner, hidden, rngs=rngs, **dtypes)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.c_proj(nnx.gelu(self.c_fc(x), approximate=True))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` changes nothing: there is one layer."""
    return FeedForward(
        size["hidden"], size["inner"], parameters=parameters, compute=compute, rngs=nnx.Rngs(0)
    )


def loss(module: nnx.Module, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean squared error against ``target``."""
    y = module(batch["x"])
    return jnp.mean(jnp.square(y - batch["target"])), {"y": y}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    return tuple(
        rule
        for layer in ("c_fc", "c_proj")
        for rule in (
            WeightRule(f"{layer}.weight", (layer, "kernel"), "transposed"),
            WeightRule(f"{layer}.bias", (layer, "bias")),
        )
    )
