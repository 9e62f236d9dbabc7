"""Values whose gradient is stated beside them, where torch's is not the derivative of torch's value."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_jvp
def only_gradient(x: jax.Array) -> jax.Array:
    """Zero with the gradient of ``x``: ``lax.stop_gradient(value) + only_gradient(x)`` has one's value and the
    other's gradient. The value of ``x`` is dead code and may be NaN."""
    return jnp.zeros_like(x)


@only_gradient.defjvp
def _only_gradient_jvp(primals: Any, tangents: Any) -> Any:
    # Itself and not zeros: the second derivative of what it stands in (a product) comes through it again.
    return only_gradient(primals[0]), tangents[0]
