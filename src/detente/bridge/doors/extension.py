"""``detente.extend``: teach the bridge an operator that its table does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detente.bridge.lower.driver import load_table
from detente.bridge.lower.table import TABLE, USERS, Entry


def extend(op: str, lower: Callable[..., Any], *, random: bool = False, replace: bool = False) -> None:
    """Register ``lower(call, *args, **kwargs)`` for the operator ``op``, named as in a refusal
    (``"mylib.myop.default"``).

    Tensors arrive as ``jax.Array``, everything else as in the torch call (a dtype as its name). The result
    must have ATen's own shape and dtype (``call.out``), and be differentiable by JAX. ``random``: it calls
    ``call.key()``. Raises ValueError for an operator that is there already, unless ``replace``.

    >>> detente.extend("mylib.twice.default", lambda call, x: 2 * x)
    """
    load_table()
    if op in TABLE and not replace:
        raise ValueError(
            f"{op} has a lowering in {TABLE[op].lower.__module__}; pass replace=True to change it"
        )
    if op.count(".") < 2:
        raise ValueError(f"{op!r} is not an operator's full name; it looks like 'aten.add.Tensor'")
    TABLE[op] = Entry(op, lower, random, USERS)
