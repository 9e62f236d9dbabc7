"""The keys of a step, in JAX. The torch side of the same numbers is ``threefry.py``.

``step_key(seed, count)`` is the key of one step; call number ``draw`` of that step (its ordinal in eager
order) uses ``fold_in(step key, draw)``. Both are threefry whatever jax's default implementation is, and
partitionable, so a value depends on its index alone: the same on one device and on any mesh.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.kernels.build import may_call
from detente.bridge.kernels.targets import FOLDED, call

IMPLEMENTATION = "threefry2x32"


def step_key(seed: Any, count: Any) -> jax.Array:
    """The random key of step number ``count`` (0-based, uint32): ``fold_in(key(seed), count)``."""
    return jax.random.fold_in(jax.random.key(seed, impl=IMPLEMENTATION), count)


def call_key(step: jax.Array, draw: Any) -> jax.Array:
    """The key of random call number ``draw`` of a step: ``fold_in``, by the kernel where kernels are called. Written
    out it is a hundred operations for each call of a model, which take longer to compile than what they are for."""
    if not may_call() or step.shape:
        return jax.random.fold_in(step, draw)
    number = jnp.asarray(draw).astype(jnp.uint32)
    (words,) = call(FOLDED, [(2,)], jax.random.key_data(step), number, dtype=np.uint32)
    return jax.random.wrap_key_data(words, impl=IMPLEMENTATION)
