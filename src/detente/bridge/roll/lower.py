"""``detente.roll`` as one ``lax.scan``, with rematerialisation.

A loop keeps for the backward pass what its body keeps, times the iterations. That is more than XLA keeps of the
written-out layers (it shares and recomputes across them), so a bare loop saves compile time and costs memory; a
remat policy turns that round. The policies are rows here and the choice among them is ``bridge.choose``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.graph import Graph, Input, Node
from detente.bridge.lower.faults import NO_FAULT
from detente.bridge.lower.ops.library_convolution import KEPT
from detente.bridge.lower.table import Call, lowers
from detente.bridge.roll.fold import ROLL

Body = Callable[..., Any]


@dataclass(frozen=True)
class Remat:
    """What the backward pass of an iteration finds ready. ``policy`` is None for nothing but the carries."""

    name: str
    keeps: str
    policy: Callable[..., bool] | None = None


REMATS: dict[str, Remat] = {
    r.name: r
    for r in (
        Remat("full", "the carries alone; every layer is computed twice"),
        Remat(
            "dots",
            "the carries and the products with weights; attention scores are computed twice",
            jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        ),
        Remat(
            "products",
            "the carries, every matrix product and what torch convolved",
            jax.checkpoint_policies.save_from_both_policies(
                jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names(KEPT)
            ),
        ),
    )
}


def with_remat(graph: Graph, remat: str | None, unroll: int = 1) -> Graph:
    """The graph with every loop's ``remat`` (a name in ``REMATS``, or None) and ``unroll`` (iterations per turn)."""

    def rewritten(node: Node) -> Node:
        if node.op != ROLL:
            return node
        kwargs = {k: v for k, v in node.kwargs if k not in ("remat", "unroll")}
        if remat is not None:
            kwargs["remat"] = remat
        if unroll != 1:
            kwargs["unroll"] = unroll
        body = with_remat(node.args[0], remat)
        return replace(node, args=(body, *node.args[1:]), kwargs=tuple(kwargs.items()))

    return replace(graph, nodes=tuple(rewritten(n) for n in graph.nodes))


def stack_rows(rows: Any, item: Input) -> jax.Array:
    """The values of all iterations along a new first axis: a tuple of arrays or numbers, or what is stacked."""
    if not isinstance(rows, tuple):
        return rows
    return jnp.stack([jnp.asarray(r, item.aval.dtype) for r in rows])


@lowers("detente.roll", note="a loop over repeated layers; bridge/roll/fold.py gives the form")
def roll(
    call: Call,
    body: Graph,
    count: int,
    carries: tuple[Any, ...],
    stacked: tuple[Any, ...],
    invariants: tuple[Any, ...],
    *,
    draws: int = 0,
    remat: str | None = None,
    unroll: int = 1,
) -> tuple[jax.Array, ...]:
    """The last carries, then every y stacked along a new first axis."""
    function = call.function(body)
    xs = tuple(stack_rows(s, i) for s, i in zip(stacked, body.inputs[len(carries) :], strict=False))

    def values(k: jax.Array, carried: tuple[Any, ...], rows: tuple[Any, ...], shared: tuple[Any, ...]) -> Any:
        return function(*carried, *rows, *shared, draw_offset=k * draws if draws else 0)

    if remat is not None:
        # inside a scan nothing can be merged across the border of the body, so no barriers are needed
        values = jax.checkpoint(values, policy=REMATS[remat].policy, prevent_cse=False)

    def iteration(state: tuple[Any, jax.Array], x: tuple[jax.Array, Any]) -> tuple[Any, Any]:
        carried, word = state
        k, rows = x
        outputs, own = values(k, carried, rows, invariants)
        return (outputs[: len(carries)], jnp.minimum(word, own)), outputs[len(carries) :]

    steps = jnp.arange(count, dtype=jnp.int32)
    first = (tuple(jnp.asarray(c) for c in carries), jnp.int32(NO_FAULT))
    (last, word), ys = lax.scan(iteration, first, (steps, xs), length=count, unroll=unroll)
    call.merge(word)
    return (*last, *ys)
