"""``gemm`` in Flax NNX, in the style of the first module of Flax's own guide "Flax basics"
(flax.readthedocs.io, nnx_basics)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size


class Gemm(nnx.Module):
    """y = x @ weight with x (m, k), weight (k, n)."""

    def __init__(self, k: int, n: int, *, parameters: str, compute: str, rngs: nnx.Rngs) -> None:
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (k, n), jnp.dtype(parameters)) / k**0.5)
        self.compute = compute

    def __call__(self, x: jax.Array) -> jax.Array:
        return x.astype(self.compute) @ self.weight[...].astype(self.compute)


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` changes nothing: there are no layers."""
    return Gemm(size["k"], size["n"], parameters=parameters, compute=compute, rngs=nnx.Rngs(0))


def loss(module: nnx.Module, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """sum(y * g) / g.size, so that the product is pulled back by g and nothing else costs a product."""
    y, g = module(batch["x"]), batch["g"]
    return jnp.sum(y * g) / g.size, {"y": y}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    return (WeightRule("weight", ("weight",)),)
