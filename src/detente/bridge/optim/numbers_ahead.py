"""The arithmetic of numbers in an optimizer's step, done ahead for all parameters at once.

torch keeps a step count for each parameter, so that ``1 - beta2 ** step`` stands in the program once per parameter, in
float64. A CPU calls ``pow`` 148 times where it could once; a TPU has no float64, and its compiler writes out an
emulation of each: libtpu took all of a 24 GiB machine to compile GPT-Neo's step, and 115 s for a GPT-2 of two small
layers, where JAX's own step took 3. The counts are values of their own, and nothing says that they are equal, so they
are not merged but put side by side: one vector of counts, one power of it, and each parameter reads its element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.graph import Graph
from detente.bridge.lower.driver import Trace as Lowering
from detente.bridge.lower.driver import evaluate
from detente.bridge.lower.faults import Sites
from detente.bridge.optim.halves import Split


def all_ahead(
    wanted: Sequence[tuple[Split, Mapping[str, Any], jax.Array, bool]],
) -> list[tuple[Any, ...]]:
    """What each one's ``rest`` is given. Of each: its split, its state's entries, the numbers of its group by name
    under ``hyper.`` as rows, and whether entries and numbers have a leading axis (a stack of layers). Equal arithmetic
    runs once, on vectors. Under x64."""
    found: list[tuple[Any, ...]] = [()] * len(wanted)
    groups: dict[Graph, list[int]] = {}
    for at, (one, *_) in enumerate(wanted):
        groups.setdefault(one.ahead, []).append(at)
    for graph, members in groups.items():
        # One row for each parameter, a stack's layers one after the other.
        rows = [_rows(graph, *wanted[at][1:]) for at in members]
        columns = [jnp.concatenate(column) for column in zip(*rows, strict=True)]
        results = jax.vmap(lambda *values, graph=graph: _evaluate(graph, values))(*columns)
        start = 0
        for at, row in zip(members, rows, strict=True):
            stop = start + row[0].shape[0]
            stacked = wanted[at][3]
            found[at] = tuple(r[start:stop] if stacked else r[start] for r in results)
            start = stop
    return found


def _rows(graph: Graph, values: Mapping[str, Any], numbers: Any, stacked: bool) -> list[jax.Array]:
    """The graph's inputs as vectors. A row of numbers that a whole stack shares is repeated."""
    found = [jnp.asarray(values[i.name] if i.name in values else numbers[i.name]) for i in graph.inputs]
    if not stacked:
        return [v.reshape(1) for v in found]
    length = max(v.shape[0] for v in found if v.ndim)
    return [v if v.ndim else jnp.broadcast_to(v, (length,)) for v in found]


def _evaluate(graph: Graph, values: Sequence[Any]) -> tuple[Any, ...]:
    inputs = {item.id: value for item, value in zip(graph.inputs, values, strict=True)}
    return evaluate(graph, inputs, Lowering(Sites()))
