"""Calls that are alike are traced once.

A model has the same norm in every layer. Tracing its fifteen operations and their derivatives, and writing both down,
is Python's work: for ResNet-50's batch norms, half of what lowering took. An entry of the table that is ``shared``
becomes a function of JAX's for each kind of call. XLA puts it in the place of every call before it does anything else,
so that the program is the same, and the operations keep the scope of their call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from detente.bridge.graph import Node
from detente.bridge.lower.backwards import backwards_once

Function = Callable[..., Any]
_ARRAY = object()  # where an argument is an array


class Shared:
    """The functions of one trace: what a trace takes for granted (the precision of products, whose derivatives are at
    work) is the same for all of them, and may be another in the next."""

    def __init__(self) -> None:
        self._made: dict[Any, Function] = {}

    def __call__(self, lower: Function, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``lower(*args, **kwargs)`` for ``node``."""
        leaves, structure = jax.tree.flatten((tuple(args), dict(kwargs)))
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        plain = [_ARRAY if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        # 1, 1.0 and True are equal, and so are 0.0 and -0.0. A derivative's inside is differentiated once more.
        told = tuple((type(leaf), repr(leaf)) for leaf in plain)
        key = (node.op, node.out, structure, told, backwards_once())
        if key not in self._made:

            def run(*given: jax.Array) -> Any:
                rest = iter(given)
                own, named = jax.tree.unflatten(structure, [next(rest) if x is _ARRAY else x for x in plain])
                return lower(*own, **named)

            run.__name__ = node.op.split(".")[1]
            self._made[key] = jax.jit(run)
        return self._made[key](*arrays)
