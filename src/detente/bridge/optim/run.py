"""One parameter's update: the traced graphs, interpreted with the lowering table.

Everything here runs with x64 on (the scalars of an update are doubles, as on torch's host), whatever the
caller's mode; parameters, gradients and tensors of the state keep their own dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import detente.bridge.optim.symbolic  # noqa: F401  (registers its rows in the table)
from detente.bridge.graph import Graph
from detente.bridge.lower.driver import Trace as Lowering
from detente.bridge.lower.driver import evaluate
from detente.bridge.lower.faults import Sites
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.optim.halves import AHEAD
from detente.bridge.optim.program import Path, Program, Trace

STARTED = "#started"  # 0-d bool beside the leaves of a parameter whose first step is a computation of its own


def update(
    program: Program,
    param: jax.Array,
    grad: jax.Array,
    state: Mapping[str, Any],
    numbers: jax.Array,
    ahead: tuple[Any, ...] = (),
    skip: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, Any]]:
    """The new parameter and the new state of one parameter; ``numbers`` is its group's row, decoded. ``ahead``: what
    was computed for its ``rest`` (numbers_ahead.py), where it is split. ``skip``, a 0-d bool: both as they were. Under
    x64."""
    values: dict[str, Any] = {"param": param, "grad": grad, **numbers_in(program, state, numbers)}
    halves = program.halves
    if ahead and halves is not None:
        results = _run(halves.rest, values | {f"{AHEAD}{i}": v for i, v in enumerate(ahead)})
    else:
        results = _select(program.step, values)
    started = state.get(STARTED)
    if program.first is not None and started is not None:
        first = _select(program.first, values)
        results = tuple(jnp.where(started, new, begin) for new, begin in zip(results, first, strict=True))
    fresh = {
        leaf.key: jnp.asarray(value, leaf.aval.dtype)
        for leaf, value in zip(program.leaves, results[1:], strict=True)
    }
    if started is not None:
        fresh[STARTED] = jnp.ones_like(started)
    return unless(skip, results[0], param), {
        key: unless(skip, value, state[key]) for key, value in fresh.items()
    }


def unless(skip: jax.Array | None, new: Any, old: Any) -> Any:
    """The new value, and the old one where ``skip`` is true."""
    return new if skip is None else jnp.where(skip, old, new)


def numbers_in(program: Program, state: Mapping[str, Any], numbers: jax.Array) -> dict[str, Any]:
    """What a step takes besides the parameter and its gradient, by the names of its graph's inputs. ``numbers`` may
    have a row for each layer of a stack."""
    return {**_named(program, numbers), **{f"state.{leaf.key}": state[leaf.key] for leaf in program.leaves}}


def born(program: Program, param: jax.Array | None, hyper: Any) -> dict[str, Any]:
    """The state of a parameter before its first step; zeros where the first step does not read it. ``hyper`` is
    its group's row as ``Rule.hyper`` gives it."""
    with torch_numerics():
        values: dict[str, Any] = {"param": param, **_named(program, decode(hyper))}
        out: dict[str, Any] = {}
        for leaf in program.leaves:
            graph = (program.births or {}).get(leaf.key)
            value = jnp.zeros(leaf.aval.shape, leaf.aval.dtype) if graph is None else _run(graph, values)[0]
            out[leaf.key] = jnp.asarray(value, leaf.aval.dtype)
            if out[leaf.key] is param or any(out[leaf.key] is v for k, v in out.items() if k != leaf.key):
                out[leaf.key] = jnp.copy(
                    value
                )  # a donated buffer must be nobody else's (z, x and y begin as p)
        if program.first is not None:
            out[STARTED] = jnp.zeros((), bool)
        return out


def decode(hyper: Any) -> jax.Array:
    """float64[n] of a row as ``hyper.encode`` made it. Under x64."""
    parts = jnp.asarray(hyper).astype(jnp.float64)
    return parts[..., 0] + parts[..., 1] + parts[..., 2]


def _named(program: Program, numbers: jax.Array) -> dict[str, Any]:
    return {f"hyper.{name}": numbers[..., i] for i, name in enumerate(program.hyper)}


def _run(graph: Graph, values: Mapping[str, Any]) -> tuple[Any, ...]:
    inputs = {item.id: values[item.name] for item in graph.inputs if item.name in values}
    return evaluate(graph, inputs, Lowering(Sites()))


def _select(trace: Trace, values: Mapping[str, Any]) -> tuple[Any, ...]:
    return select(trace.paths, values, 1 + len(trace.leaves))


def select(paths: Sequence[Path], values: Mapping[str, Any], count: int) -> tuple[Any, ...]:
    """The first ``count`` outputs of the path whose conditions hold, which are its other outputs; all are computed, and
    XLA shares what they have in common."""
    results = {path.outcomes: _run(path.graph, values) for path in paths}

    def pick(prefix: tuple[bool, ...]) -> tuple[Any, ...]:
        if prefix in results:
            return results[prefix][:count]
        test = next(r for outcomes, r in results.items() if outcomes[: len(prefix)] == prefix)[
            count + len(prefix)
        ]
        yes, no = pick((*prefix, True)), pick((*prefix, False))
        return tuple(jnp.where(test, a, b) for a, b in zip(yes, no, strict=True))

    return pick(())
