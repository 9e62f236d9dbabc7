"""What can be read from a tensor of unknown length (``capture/ragged.py``): a row of each group, a count of runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.lower.dtypes import out_dtype
from detente.bridge.lower.table import lowers


@lowers("detente.group_row", note="x[mask].view(groups, -1, *rest)[:, number]")
def _group_row(call: Any, x: jax.Array, mask: jax.Array, groups: int, number: int) -> jax.Array:
    """Row ``number`` of each of ``groups`` equal groups of the true rows, in order. Faults where torch's view or
    select would raise: the rows do not make equal groups, or a group has no such row."""
    count = mask.size
    rows = x.reshape(count, *x.shape[mask.ndim :])
    rank = jnp.cumsum(mask.reshape(-1).astype(jnp.int32))  # the n-th true row is the first of rank n
    total = rank[-1] if count else jnp.int32(0)
    each = total // groups
    message = f"RuntimeError: the rows that a mask selects do not make {groups} equal groups"
    call.fault(total % groups != 0, message)
    low = -number if number < 0 else number + 1
    call.fault(each < low, f"IndexError: index {number} is out of range: a group has too few rows")
    inside = each + number if number < 0 else jnp.int32(number)
    wanted = jnp.arange(groups, dtype=jnp.int32) * each + inside + 1
    places = jnp.clip(jnp.searchsorted(rank, wanted), 0, max(count - 1, 0))
    return jnp.take(rows, places, axis=0, mode="clip")


@lowers("detente.run_count", note="len(torch.unique_consecutive(x))")
def _run_count(call: Any, x: jax.Array) -> jax.Array:
    flat = x.reshape(-1)
    if not flat.size:
        return jnp.zeros((), out_dtype(call))
    return 1 + jnp.sum(flat[1:] != flat[:-1], dtype=out_dtype(call))
