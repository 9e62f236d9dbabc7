"""Indices and their range: torch raises on one out of range and XLA clamps it silently, so each is reported."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def checked(call: Any, index: jax.Array, size: int, message: str, wrap: bool = True) -> jax.Array:
    """``index`` with negative values wrapped (if ``wrap``), made safe, and a fault where torch would raise.

    In int32 where the axis allows it, as it always does: JAX transposes a gather where 64-bit kinds may be switched off
    again (``jax.grad`` of ``detente.functional``), and then mixes widths."""
    low = -size if wrap else 0
    call.fault(jnp.any((index < low) | (index >= size)), message)
    if wrap:
        index = jnp.where(index < 0, index + size, index)
    index = jnp.clip(index, 0, max(size - 1, 0))
    return index.astype(jnp.int32) if size <= 2**31 - 1 else index
