"""torch.cond, while_loop, scan, associative_scan and map as their lax counterparts, fault words carried along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.faults import NO_FAULT
from detente.bridge.lower.table import lowers


def _arrays(values: Sequence[Any]) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(v) for v in values)


def _branch(function: Any) -> Any:
    """A branch whose outputs are arrays even where the graph returns a number."""

    def branch(*args: Any) -> Any:
        outputs, word = function(*args)
        return _arrays(outputs), word

    return branch


@lowers("higher_order.cond")
def _cond(call: Any, predicate: Any, true_graph: Any, false_graph: Any, operands: Sequence[Any] = ()) -> Any:
    operands = tuple(operands)
    branches = [_branch(call.function(true_graph)), _branch(call.function(false_graph))]
    if isinstance(predicate, bool):
        outputs, word = branches[0 if predicate else 1](*operands)
    else:
        outputs, word = lax.cond(jnp.asarray(predicate).reshape(()) != 0, *branches, *operands)
    call.merge(word)
    return outputs


@lowers("higher_order.while_loop", note="forward only: JAX has no gradient for a loop of unknown length")
def _while_loop(
    call: Any, condition: Any, body: Any, carried: Sequence[Any], extra: Sequence[Any] = ()
) -> Any:
    test, step = call.function(condition), call.function(body)

    def go_on(state: Any) -> jax.Array:
        return jnp.asarray(test(*state[0], *extra)[0][0]).reshape(()) != 0

    def advance(state: Any) -> Any:
        outputs, word = step(*state[0], *extra)
        return _arrays(outputs), jnp.minimum(state[1], word)

    outputs, word = lax.while_loop(go_on, advance, (_arrays(carried), jnp.int32(NO_FAULT)))
    call.merge(word)
    return outputs


@lowers("higher_order.scan")
def _scan(call: Any, body: Any, init: Sequence[Any], xs: Sequence[Any], extra: Sequence[Any] = ()) -> Any:
    """torch's scan runs over dimension 0 and gives the last carry, then the stacked outputs."""
    step, carries = call.function(body), len(init)

    def advance(state: Any, now: Any) -> Any:
        outputs, word = step(*state[0], *now, *extra)
        outputs = _arrays(outputs)
        return (outputs[:carries], jnp.minimum(state[1], word)), outputs[carries:]

    (last, word), stacked = lax.scan(advance, (_arrays(init), jnp.int32(NO_FAULT)), tuple(xs))
    call.merge(word)
    return (*last, *stacked)


@lowers("higher_order.map_impl")
def _map(call: Any, body: Any, xs: Sequence[Any], extra: Sequence[Any] = ()) -> Any:
    step = call.function(body)

    def advance(word: jax.Array, now: Any) -> Any:
        outputs, inner = step(*now, *extra)
        return jnp.minimum(word, inner), _arrays(outputs)

    word, stacked = lax.scan(advance, jnp.int32(NO_FAULT), tuple(xs))
    call.merge(word)
    return stacked


@lowers("higher_order.associative_scan")
def _associative_scan(call: Any, combine: Any, xs: Sequence[Any], extra: Sequence[Any] = ()) -> Any:
    # The combine function sees slices without the scanned dimension, in torch and here.
    step = call.function(combine)

    def one(left: Any, right: Any) -> Any:
        return _arrays(step(*left, *right, *extra)[0])

    return lax.associative_scan(jax.vmap(one), tuple(xs))
