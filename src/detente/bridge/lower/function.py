"""``detente.function``: an ``autograd.Function`` (or a tensor hook) with the backward that the user wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.graph import Graph
from detente.bridge.lower.table import Call, lowers
from detente.bridge.passes.dead import without_dead


@lowers("detente.function", note="capture/functions.py traces the joint graph")
def function(call: Call, joint: Graph, count: int, tensors: tuple[Any, ...]) -> tuple[jax.Array, ...]:
    """``joint`` maps the tensors and one gradient per output to ``count`` outputs and one gradient per tensor.

    The backward pass evaluates the joint graph again from the tensors; XLA merges what the forward pass has computed
    already, and draws repeat their numbers, because an ordinal belongs to its node.
    """
    taken = len(tensors)
    free = [i for i in joint.inputs if i.name not in joint.constants]
    own = [i for i in joint.inputs if i.name in joint.constants]
    forward = without_dead(replace(joint, inputs=(*free[:taken], *own), outputs=joint.outputs[:count]))
    run, both = call.function(forward), call.function(joint)

    @jax.custom_vjp
    def apply(*values: jax.Array) -> Any:
        return run(*values)

    def ahead(*values: jax.Array) -> Any:
        return run(*values), values

    def back(values: tuple[jax.Array, ...], cotangents: Any) -> tuple[Any, ...]:
        given = zip(free[taken:], cotangents[0], strict=True)
        # an integer output has no cotangent: torch hands its backward a tensor of zeros
        grads = [jnp.zeros(i.aval.shape, i.aval.dtype) if _empty(c) else c for i, c in given]
        results, _ = both(*values, *grads)
        return tuple(
            jnp.asarray(g, v.dtype)
            if jnp.issubdtype(v.dtype, jnp.inexact)
            else np.zeros(v.shape, jax.dtypes.float0)
            for g, v in zip(results[count:], values, strict=True)
        )

    apply.defvjp(ahead, back)
    outputs, word = apply(*tensors)
    call.merge(word)
    return tuple(outputs)


def _empty(cotangent: Any) -> bool:
    return getattr(cotangent, "dtype", None) == jax.dtypes.float0
