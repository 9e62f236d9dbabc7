"""Products of two half-precision arrays: a result in float32, and derivatives whose products are as narrow as torch's.

JAX transposes a product with ``preferred_element_type`` into one of the wide cotangent, which is several times the work
where a device multiplies bfloat16 faster; ATen rounds the gradient to the operands' dtype first. Here the derivative
is of the product that ends in the operands' dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from detente.bridge.lower.dtypes import cast, wide

# (a, b, dtype of the result; None: the operands') -> a product that is linear in both
Contraction = Callable[[jax.Array, jax.Array, Any], jax.Array]


def contracted(contraction: Contraction, a: jax.Array, b: jax.Array, kind: Any) -> jax.Array:
    """The product in ``kind`` (None: as JAX has it)."""
    if a.dtype != b.dtype or wide(a.dtype) == a.dtype:
        return contraction(a, b, kind)
    return _widely(contraction, a, b)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _widely(contraction: Contraction, a: jax.Array, b: jax.Array) -> jax.Array:
    return contraction(a, b, wide(a.dtype))


def _tangent(contraction: Contraction, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (a, b), (moved_a, moved_b) = primals, tangents
    kind = wide(a.dtype)
    parts = []
    if not isinstance(moved_a, SymbolicZero):
        parts.append(cast(contraction(moved_a, b, None), kind))
    if not isinstance(moved_b, SymbolicZero):
        parts.append(cast(contraction(a, moved_b, None), kind))
    # The value is computed here and not by ``_widely`` again: what decides which products a backward pass keeps looks
    # for products.
    return contraction(a, b, kind), sum(parts[1:], parts[0])


_widely.defjvp(_tangent, symbolic_zeros=True)
