"""Gradient accumulation inside the compiled step: one batch, several micro-batches, one update.

The same as the torch loop ::

    for part in batch.split(size // parts):
        (loss(model, part) / parts).backward()
    optimizer.step()

Micro-batches run one after another in a ``lax.scan``, so memory is that of one of them; what the forward pass
writes (batch-norm statistics) goes from each to the next, as in the loop. Part ``i`` of step ``count`` draws the
random numbers of step ``count * parts + i``: ``twin(seed, count * parts + i)`` repeats it in eager torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.faults import NO_FAULT

# ``f(values, batch, key) -> ((loss, (aux, buffers, word)), gradients)``: as ``Program.gradients`` gives
Gradients = Callable[[dict[str, Any], Sequence[Any], Any], tuple[Any, dict[str, Any]]]


def microbatches(batch: Sequence[jax.Array], parts: int, axis: int = 0) -> list[jax.Array]:
    """Each leaf with a new leading axis of ``parts``. Raises ValueError where a leaf does not divide."""
    out = []
    for place, leaf in enumerate(batch):
        if leaf.ndim <= axis or leaf.shape[axis] % parts:
            raise ValueError(
                f"batch leaf {place} has shape {tuple(leaf.shape)}: axis {axis} does not divide into {parts} "
                "micro-batches; choose accumulate= so that it does"
            )
        shape = (*leaf.shape[:axis], parts, leaf.shape[axis] // parts, *leaf.shape[axis + 1 :])
        out.append(jnp.moveaxis(leaf.reshape(shape), axis, 0))
    return out


def accumulated(
    gradients: Gradients, parts: int, axis: int = 0, last: int = 0
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """``gradients`` over ``parts`` micro-batches: ``f(values, batch, key_of)`` with the same result, the loss and
    the gradients being means, aux leaves stacked over parts, buffers and the ``last`` aux leaves those of the last
    part, and the fault word the first that faulted. ``key_of(i)`` gives the step key of part ``i`` (traced int32)."""
    if parts < 1:
        raise ValueError(f"accumulate must be at least 1, not {parts}")

    def run(
        values: dict[str, Any], batch: Sequence[Any], key_of: Callable[[Any], Any]
    ) -> tuple[Any, dict[str, Any]]:
        pieces = microbatches(batch, parts, axis)
        example = jax.eval_shape(gradients, values, [p[0] for p in pieces], key_of(jnp.int32(0)))
        (loss, (aux, buffers, word)), grads = example
        stacked = len(aux) - last

        def body(carry: Any, item: Any) -> tuple[Any, Any]:
            total, written, worst, sums, _ = carry
            index, part = item
            (value, (aux, new, fault)), grad = gradients({**values, **written}, part, key_of(index))
            # Behind the first part that raises torch runs none.
            new = {name: jnp.where(worst != NO_FAULT, written[name], value) for name, value in new.items()}
            share = {name: sums[name] + g * jnp.asarray(1.0 / parts, g.dtype) for name, g in grad.items()}
            carry = (total + value / parts, new, jnp.minimum(worst, fault), share, aux[stacked:])
            return carry, aux[:stacked]

        start = (
            jnp.zeros(loss.shape, loss.dtype),
            {name: jnp.asarray(values[name]) for name in buffers},
            jnp.full(word.shape, NO_FAULT, word.dtype),
            {name: jnp.zeros(g.shape, g.dtype) for name, g in grads.items()},
            tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in aux[stacked:]),
        )
        steps = (jnp.arange(parts, dtype=jnp.int32), pieces)
        (loss_mean, written, worst, sums, kept), aux = lax.scan(body, start, steps)
        return (loss_mean, ((*aux, *kept), written, worst)), sums

    return run
