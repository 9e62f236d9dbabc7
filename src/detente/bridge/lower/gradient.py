"""Values whose gradient is stated beside them, where torch's is not the derivative of torch's value."""

from __future__ import annotations

from typing import Any

import jax


@jax.custom_jvp
def with_gradient(value: jax.Array, through: jax.Array) -> jax.Array:
    """``value`` with the gradient of ``through`` (same shape and dtype), whose own value is dead code and may be NaN.
    Not a sum of the two: that would turn -0.0 into 0.0."""
    return value


@with_gradient.defjvp
def _with_gradient_jvp(primals: Any, tangents: Any) -> Any:
    # Itself and not the value: the second derivative of what it stands in (a product) comes through it again.
    return with_gradient(*primals), tangents[1]
