"""The arithmetic of numbers in an optimizer's step, done ahead for all parameters at once where that is better.

torch keeps a step count for each parameter, so that ``1 - beta2 ** step`` stands in the program once per parameter, in
float64. A TPU has no float64, and its compiler writes out an emulation of each power: libtpu took all of a 24 GiB
machine to compile GPT-Neo's step, and 115 s for a GPT-2 of two small layers, where JAX's own step took 3. The counts
are values of their own, and nothing says that they are equal, so they are not merged but put side by side: one vector
of counts, one power of it, and each parameter reads its element.

Not on a CPU. Its compiler fuses such a vector, whole, into everything that reads one element of it: 40 parameters took
3.7 s to compile instead of 0.5 (docs/design/optimizer.md). There each parameter has its own, as it stands in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.graph import Graph
from detente.bridge.lower.driver import Trace as Lowering
from detente.bridge.lower.driver import evaluate
from detente.bridge.lower.faults import Sites
from detente.bridge.optim.halves import Split


def all_ahead(wanted: Mapping[str, tuple[Split, Mapping[str, Any], bool]]) -> dict[str, tuple[Any, ...]]:
    """What each parameter's ``rest`` is given, by its name. Of each: its split, the values of its inputs by name, and
    whether it is a stack of layers, whose state has an axis in front. Under x64."""
    found: dict[str, tuple[Any, ...]] = {}
    groups: dict[Graph, list[str]] = {}
    for name, (one, *_) in wanted.items():
        groups.setdefault(one.ahead, []).append(name)
    for graph, members in groups.items():
        taken = [tuple(jnp.asarray(wanted[name][1][i.name]) for i in graph.inputs) for name in members]
        stacked = [wanted[name][2] for name in members]
        results = lax.platform_dependent(
            taken, cpu=partial(_apart, graph, stacked), default=partial(_together, graph, stacked)
        )
        found |= zip(members, results, strict=True)
    return found


def _apart(graph: Graph, stacked: Sequence[bool], taken: Sequence[tuple[jax.Array, ...]]) -> list[Any]:
    """Each by itself; traced once."""
    once = jax.jit(partial(_evaluate, graph))
    return [
        jax.vmap(once, in_axes=tuple(0 if v.ndim else None for v in values))(*values)
        if many
        else once(*values)
        for many, values in zip(stacked, taken, strict=True)
    ]


def _together(graph: Graph, stacked: Sequence[bool], taken: Sequence[tuple[jax.Array, ...]]) -> list[Any]:
    """All as one vector, a stack's layers one after the other."""
    rows = [_rows(values, many) for many, values in zip(stacked, taken, strict=True)]
    columns = [jnp.concatenate(column) for column in zip(*rows, strict=True)]
    results = jax.vmap(partial(_evaluate, graph))(*columns)
    found, start = [], 0
    for many, row in zip(stacked, rows, strict=True):
        stop = start + row[0].shape[0]
        found.append(tuple(r[start:stop] if many else r[start] for r in results))
        start = stop
    return found


def _rows(values: Sequence[jax.Array], stacked: bool) -> list[jax.Array]:
    """As vectors. A number that a whole stack shares is repeated."""
    if not stacked:
        return [v.reshape(1) for v in values]
    length = max(v.shape[0] for v in values if v.ndim)
    return [v if v.ndim else jnp.broadcast_to(v, (length,)) for v in values]


def _evaluate(graph: Graph, *values: Any) -> tuple[Any, ...]:
    inputs = {item.id: value for item, value in zip(graph.inputs, values, strict=True)}
    return evaluate(graph, inputs, Lowering(Sites()))
