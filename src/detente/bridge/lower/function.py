"""``detente.function``: an ``autograd.Function`` (or a tensor hook) with the backward that the user wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.graph import Graph, node_refs, refs, without_dead
from detente.bridge.lower.dtypes import torchs_gradient
from detente.bridge.lower.table import Call, lowers


@lowers("detente.function", note="capture/functions.py traces the joint graph")
def function(call: Call, joint: Graph, count: int, tensors: tuple[Any, ...]) -> tuple[jax.Array, ...]:
    """``joint`` maps the tensors, the outputs and one gradient per output to ``count`` outputs and one gradient per
    tensor.

    The backward pass evaluates the joint graph again from the tensors; XLA merges what the forward pass has computed
    already, and draws repeat their numbers, because an ordinal belongs to its node. The outputs that it reads are those
    of ``apply``: where the gradient is differentiated again, their derivative is the user's, as in torch.
    """
    taken = len(tensors)
    free = [i for i in joint.inputs if i.name not in joint.constants]
    own = [i for i in joint.inputs if i.name in joint.constants]
    forward = without_dead(replace(joint, inputs=(*free[:taken], *own), outputs=joint.outputs[:count]))
    run, both = call.function(forward), call.function(joint)
    read = {r.id for n in joint.nodes for r in node_refs(n)} | {
        r.id for o in joint.outputs for r in refs(o.value)
    }
    back_reads = [item.id in read for item in free[taken : taken + count]]

    @jax.custom_vjp
    def apply(*values: jax.Array) -> Any:
        return run(*values)

    def ahead(*values: jax.Array) -> Any:
        outputs, word = apply(*values)
        return (outputs, word), (values, [o for o, wanted in zip(outputs, back_reads, strict=True) if wanted])

    def back(kept: tuple[Any, Any], cotangents: Any) -> tuple[Any, ...]:
        values, rest = kept[0], iter(kept[1])
        outputs = [
            next(rest) if wanted else jnp.zeros(i.aval.shape, i.aval.dtype)
            for i, wanted in zip(free[taken:], back_reads, strict=False)
        ]
        given = zip(free[taken + count :], cotangents[0], strict=True)
        # an integer output has no cotangent: torch hands its backward a tensor of zeros
        grads = [jnp.zeros(i.aval.shape, i.aval.dtype) if _empty(c) else torchs_gradient(c) for i, c in given]
        results, _ = both(*values, *outputs, *grads)
        return tuple(
            torchs_gradient(_fitted(g, v))
            if jnp.issubdtype(v.dtype, jnp.inexact)
            else np.zeros(v.shape, jax.dtypes.float0)
            for g, v in zip(results[count:], values, strict=True)
        )

    apply.defvjp(ahead, back)
    outputs, word = apply(*tensors)
    call.merge(word)
    return tuple(outputs)


def _fitted(gradient: jax.Array, value: jax.Array) -> jax.Array:
    """What a backward returns, as torch's engine takes it: summed where the value was broadcast."""
    extra = gradient.ndim - value.ndim
    grown = [extra + i for i, n in enumerate(value.shape) if n == 1 and gradient.shape[extra + i] != 1]
    if extra > 0 or grown:
        gradient = gradient.sum((*range(extra), *grown)).reshape(value.shape)
    return jnp.asarray(gradient, value.dtype)


def _empty(cotangent: Any) -> bool:
    return getattr(cotangent, "dtype", None) == jax.dtypes.float0


@lowers("detente.pull", note="capture/parts.py")
def pull(
    call: Call,
    joint: Graph,
    count: int,
    tensors: tuple[Any, ...],
    outputs: tuple[Any, ...],
    cotangents: tuple[Any, ...],
) -> tuple[jax.Array, ...]:
    """The user's backward as a function of what it reads and what comes to the outputs; None is zeros."""
    given = [jnp.zeros_like(o) if c is None else c for o, c in zip(outputs, cotangents, strict=True)]
    results, word = call.function(joint)(*tensors, *outputs, *given)
    call.merge(word)
    return tuple(_fitted(g, v) for g, v in zip(results[count:], tensors, strict=True))
