"""Layers of one shape, one after another: a list, or one stacked module under ``nnx.scan``.

Style: the section "Scan over layers" of Flax's guide "Flax basics" (flax.readthedocs.io, nnx_basics).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

# A list of modules; before 0.12 Flax took a plain one and had no name for it.
Modules = getattr(nnx, "List", list)


def stacked(make: Callable[[nnx.Rngs], nnx.Module], count: int, *, scan: bool, rngs: nnx.Rngs) -> Any:
    """``count`` modules that ``make`` makes. ``scan``: one whose every leaf has a leading axis of ``count``."""
    if not scan:
        return Modules(make(rngs) for _ in range(count))

    @nnx.split_rngs(splits=count)
    @nnx.vmap(in_axes=0, out_axes=0)
    def made(rngs: nnx.Rngs) -> nnx.Module:
        return make(rngs)

    return made(rngs)


def through(layers: Any, x: jax.Array, *shared: Any, scan: bool) -> jax.Array:
    """x through what ``stacked`` made; each layer is called with x and what all of them ``shared``: a mask, angles."""
    if not scan:
        for layer in layers:
            x = layer(x, *shared)
        return x

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def one(x: jax.Array, layer: Any) -> jax.Array:
        return layer(x, *shared)

    return one(x, layers)
