"""``detente.derivative`` and ``detente.vmap``: a part of the program under a transformation of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.graph import Graph
from detente.bridge.lower.backwards import again
from detente.bridge.lower.faults import NO_FAULT
from detente.bridge.lower.table import Call, lowers


@lowers("detente.derivative", note="capture/derivative.py")
def derivative(
    call: Call, body: Graph, inputs: tuple[Any, ...], outer: tuple[Any, ...], cotangents: tuple[Any, ...]
) -> tuple[jax.Array, ...]:
    """The gradients of ``body``'s outputs by its first inputs. The body is evaluated again; XLA merges it with what the
    program computes anyway, draws repeat their numbers. For complex numbers torch's gradient is the conjugate of
    JAX's."""
    run = call.function(body)
    with again():
        outputs, pull, word = jax.vjp(lambda *xs: run(*xs, *outer), *inputs, has_aux=True)
    call.merge(word)
    given = [
        jnp.zeros_like(y) if c is None else jnp.conj(jnp.asarray(c, y.dtype))
        for y, c in zip(outputs, cotangents, strict=True)
    ]
    return tuple(jnp.conj(g) for g in pull(tuple(given)))


@lowers("detente.leaf")
def leaf(call: Call, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    return tensors


@lowers("detente.vmap", note="capture/mapped.py")
def vmap(
    call: Call,
    body: Graph,
    mapped: tuple[Any, ...],
    dims: tuple[int, ...],
    outer: tuple[Any, ...],
    out_dims: tuple[int, ...],
) -> tuple[jax.Array, ...]:
    """``body`` for every turn of ``mapped``; a fault of any turn is a fault."""
    run = call.function(body)
    every = jax.vmap(run, in_axes=(*dims, *(None for _ in outer)), out_axes=(out_dims, 0))
    outputs, words = every(*mapped, *outer)
    call.merge(jnp.min(words, initial=jnp.int32(NO_FAULT)))
    return outputs
