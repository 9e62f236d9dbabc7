"""A program of a captured step, in the form that is chosen for it; and how long one step of it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np

from detente.bridge.capture.captured import Captured
from detente.bridge.choose.choose import Chosen, alike_of, choose
from detente.bridge.choose.forms import Shaped
from detente.bridge.choose.memory import limit_bytes
from detente.bridge.lower.driver import load_table
from detente.bridge.passes.connected import connected
from detente.bridge.program.captured import graph_of
from detente.bridge.program.program import Compiled, Program, compile_step
from detente.bridge.roll.stacks import Stack, Stacks
from detente.bridge.state.state import State
from detente.bridge.step.options import Options


def maker(
    options: Options,
    choices: Path | None,
    captured: Captured,
    arrays: list[Any],
    rule: Any,
    hyper: Any,
    state: State,
    *,
    later: bool = False,
) -> Callable[..., Chosen[Compiled]]:
    """``choose`` for a captured program; ``choices`` is the folder of what tuning measured. ``later``: what is returned
    is called by another thread, and needs to know no more of the state than its shapes of now; else the first state is
    made while XLA compiles."""
    load_table()
    graph = graph_of(captured)
    reached = connected(graph)
    values, optimizer = state.shapes()

    def build(shaped: Shaped) -> Compiled:
        stacks = {s.name: s.members for s in shaped.stacks.rows}
        inside, parts = shaped.form.inside, options.accumulate
        program = Program(shaped.graph, options.matmul, stacks, reached, inside, parts)
        joined, state_of = (shaped.stacks.join(part, _stacked) for part in (values, optimizer))
        meanwhile = (lambda: None) if later else partial(state.begin, shaped.stacks)
        return compile_step(program, rule, joined, state_of, arrays, hyper, meanwhile)

    return partial(
        choose,
        graph,
        build,
        executable=_executable,
        alike=alike_of(rule),
        whole=options.waits(rule),
        limit_bytes=limit_bytes(),
        folder=choices,
        extra=options.surroundings(rule),
    )


def measure(compiled: Compiled, arrays: list[Any], hyper: Any, state: State, steps: int = 4) -> float:
    """Seconds of one step, the fastest of ``steps`` after one, on a copy of the state: while this runs, weights and
    optimizer state exist twice."""
    stacks = Stacks(tuple(Stack(name, tuple(members)) for name, members in compiled.program.stacks.items()))
    held = state.copied(stacks)
    best = float("inf")
    for count in range(steps + 1):
        start = perf_counter()
        changed, held.optimizer, *rest = compiled(
            held.values, held.optimizer, arrays, hyper, np.uint32(0), np.uint32(count)
        )
        held.values.update(changed)
        jax.block_until_ready((held.values, held.optimizer, rest))
        best = min(best, perf_counter() - start) if count else best
    return best


def _executable(compiled: Compiled) -> Any:
    return compiled.executable


def _stacked(rows: list[Any]) -> Any:
    """The shapes of stacked leaves (pytrees of shapes that are all alike)."""
    count = len(rows)
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((count, *a.shape), a.dtype), rows[0])
