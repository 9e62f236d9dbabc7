"""One function on both sides: torch eager, and the table under jit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from detente.bridge.lower.driver import Trace, evaluate
from detente.bridge.lower.faults import Sites
from detente.bridge.lower.precision import torch_numerics
from opinfo.tracing import graph_of, to_numpy


@dataclass(frozen=True)
class Ours:
    """Outputs of the jitted table, and the exception that reading the loss would raise (None when there is none)."""

    outputs: tuple[np.ndarray, ...]
    error: Exception | None


def in_table(function: Callable[..., Any], *tensors: torch.Tensor, seed: int = 0) -> Ours:
    """``function`` exported on these tensors and run through the table."""
    graph = graph_of(function, tensors)
    ids = [item.id for item in graph.inputs if item.kind == "batch"]
    sites = Sites()
    with torch_numerics():

        def run(values: list[jax.Array]) -> Any:
            trace = Trace(sites, jax.random.key(seed))
            return evaluate(graph, dict(zip(ids, values, strict=True)), trace), trace.word()

        outputs, word = jax.jit(run)([to_numpy(t) for t in tensors])
    return Ours(tuple(np.asarray(o) for o in outputs), sites.error(int(word)))


def gradient_in_table(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[np.ndarray, ...]:
    """Gradients of a scalar function by all of its (float) tensors, through the table."""
    graph = graph_of(function, tensors)
    ids = [item.id for item in graph.inputs if item.kind == "batch"]
    with torch_numerics():

        def run(values: list[jax.Array]) -> Any:
            trace = Trace(Sites(), jax.random.key(0))
            return evaluate(graph, dict(zip(ids, values, strict=True)), trace)[0]

        grads = jax.jit(jax.grad(run))([to_numpy(t) for t in tensors])
    return tuple(np.asarray(g) for g in grads)


def in_eager(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[np.ndarray, ...]:
    """torch's own outputs."""
    result = function(*tensors)
    return tuple(to_numpy(r) for r in (result if isinstance(result, tuple | list) else (result,)))


def same(function: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Asserts that both sides give the same kinds and the same values, NaN in the same places, without a fault."""
    ours = in_table(function, *tensors)
    assert ours.error is None
    for mine, theirs in zip(ours.outputs, in_eager(function, *tensors), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_array_equal(mine, theirs)
