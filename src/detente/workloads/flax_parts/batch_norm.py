"""Batch normalisation in Flax NNX with torch's running buffers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class BatchNorm(nnx.Module):
    """Batch normalisation over the last axis with torch's running buffers.

    ``nnx.BatchNorm`` keeps the biased variance of the batch and always in float32. torch keeps the unbiased one,
    n/(n-1) of it, while it normalises by the biased one; the buffers of the two would part at the first step.
    """

    def __init__(self, features: int, *, momentum: float = 0.1, epsilon: float = 1e-5, dtype: str) -> None:
        self.scale = nnx.Param(jnp.ones(features, dtype))
        self.bias = nnx.Param(jnp.zeros(features, dtype))
        self.mean = nnx.BatchStat(jnp.zeros(features, dtype))
        self.var = nnx.BatchStat(jnp.ones(features, dtype))
        # torch's momentum is the share of the new batch; Flax's is the share of the old average.
        self.momentum, self.epsilon = momentum, epsilon
        self.use_running_average = False  # Module.train() and Module.eval() set it, by this name

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.promote_types(x.dtype, self.scale.dtype))
        if self.use_running_average:
            mean, var = self.mean[...], self.var[...]
        else:
            axes = tuple(range(x.ndim - 1))
            mean = wide.mean(axes)
            var = jnp.square(wide - mean).mean(axes)
            count = x.size // x.shape[-1]
            self._average(self.mean, mean)
            self._average(self.var, var * (count / (count - 1)))
        y = (wide - mean) * jax.lax.rsqrt(var + self.epsilon) * self.scale[...] + self.bias[...]
        # Autocast leaves batch normalisation in the dtype of its input.
        return y.astype(x.dtype)

    def _average(self, running: nnx.BatchStat, new: jax.Array) -> None:
        new = jax.lax.stop_gradient(new)
        running[...] = (1 - self.momentum) * running[...] + self.momentum * new
