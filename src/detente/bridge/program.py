"""One captured graph as JAX functions: the loss, its gradient, and the whole step as one donated
executable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.graph import Graph
from detente.bridge.lower.driver import Trace, evaluate
from detente.bridge.lower.faults import Sites
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.passes.connected import connected
from detente.bridge.random.keys import step_key
from detente.bridge.roll.unroll import unroll

Arrays = dict[str, Any]
EMBED = 1 << 14  # elements; bigger constants are arguments, so that the compiler does not carry them about


@dataclass
class Program:
    """``graph`` with what it takes and gives by name. ``stacks`` maps a stacked name to torch's names
    (rolled forms; empty otherwise). Pure: it holds no arrays but the graph's constants."""

    graph: Graph
    matmul: str = "highest"
    stacks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    inside: bool = False  # the update inside the backward loop (choose.inside)
    sites: Sites = field(default_factory=Sites)

    @cached_property
    def connected(self) -> tuple[str, ...]:
        """Trainable names that the loss is connected to, in input order; torch gives the others no
        gradient."""
        reached = connected(unroll(self.graph))  # what a loop carries round is exact only written out
        return tuple(i.name for i in self.graph.inputs if i.name in reached)

    @cached_property
    def written(self) -> tuple[str, ...]:
        """Names of the buffers that the forward pass changes."""
        return tuple(o.name for o in self.graph.outputs if o.kind == "buffer")

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Every parameter and buffer that is read."""
        return tuple(i.name for i in self.graph.inputs if i.kind in ("parameter", "buffer"))

    @cached_property
    def large(self) -> dict[str, np.ndarray[Any, Any]]:
        """Constants that travel as arguments, under ``constant:NAME``."""
        return {f"constant:{n}": v for n, v in self.graph.constants.items() if v.size > EMBED}

    def forward(
        self, values: Mapping[str, Any], batch: Sequence[Any], key: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """``(loss, (aux leaves, new buffers by name, fault word))``. JAX-traceable, under ``torch_numerics``.

        ``values`` holds parameters, buffers and large constants by name; ``batch`` the tensor leaves in
        order.
        """
        trace = Trace(self.sites, key)
        loss, aux, buffers = self.split(evaluate(self.graph, self.bind(values, batch), trace))
        return loss, (aux, buffers, trace.word())

    def bind(self, values: Mapping[str, Any], batch: Sequence[Any]) -> dict[int, Any]:
        """Values by name and batch leaves in order as values by input id."""
        leaves = iter(batch)
        inputs: dict[int, Any] = {}
        for item in self.graph.inputs:
            if item.kind == "batch":
                inputs[item.id] = next(leaves)
            elif item.kind == "constant":
                if f"constant:{item.name}" in values:
                    inputs[item.id] = values[f"constant:{item.name}"]
            else:
                inputs[item.id] = values[item.name]
        return inputs

    def split(self, results: Sequence[Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The graph's outputs as ``(loss, aux leaves, new buffers by name)``."""
        loss, aux, buffers = None, [], {}
        for output, value in zip(self.graph.outputs, results, strict=True):
            if output.kind == "loss":
                loss = value
            elif output.kind == "buffer":
                buffers[output.name] = value
            else:
                aux.append(value)
        return loss, tuple(aux), buffers

    def gradients(self, names: Sequence[str]) -> Callable[..., Any]:
        """``f(values, batch, key) -> ((loss, (aux, buffers, word)), gradients by name)`` for ``names``."""

        def run(values: Arrays, batch: Sequence[Any], key: Any) -> Any:
            params = {n: values[n] for n in names}
            rest = {n: v for n, v in values.items() if n not in params}
            return jax.value_and_grad(lambda p: self.forward({**rest, **p}, batch, key), has_aux=True)(params)

        return run

    def update(self, rule: Any, names: Sequence[str]) -> Callable[..., Any]:
        """The step: ``f(own, state, fixed, batch, hyper, seed, count) -> (own, state, loss, aux, word)``.

        ``own`` (what the step changes: the parameters ``names`` and the written buffers) and ``state`` are
        meant to be donated.
        """
        gradients = self.gradients(names)

        def step(
            own: Arrays, state: Any, fixed: Arrays, batch: Any, hyper: Any, seed: Any, count: Any
        ) -> Any:
            key = step_key(seed, count)
            (loss, (aux, buffers, word)), grads = gradients({**fixed, **own}, batch, key)
            params = {n: own[n] for n in names}
            params, state = rule.apply(params, grads, state, hyper, self.stacks)
            return {**own, **buffers, **params}, state, loss, aux, word

        return step


@dataclass(frozen=True)
class Compiled:
    """A program as an executable. ``own`` are the names that the step donates and gives back, ``fixed``
    those that it only reads. ``seconds`` by phase: ``lower`` (trace and StableHLO) and ``compile`` (XLA)."""

    program: Program
    executable: Any
    lowered: Any
    own: tuple[str, ...]
    fixed: tuple[str, ...]
    seconds: Mapping[str, float]
    extra: dict[str, Any] = field(default_factory=dict, compare=False)  # executables made on demand

    def __call__(
        self, values: Arrays, state: Any, batch: Sequence[Any], hyper: Any, seed: Any, count: Any
    ) -> tuple[Arrays, Any, Any, Any, Any]:
        """One step: ``(changed values, state, loss, aux, word)``. ``values`` and ``state`` are used up."""
        own = {n: values[n] for n in self.own}
        fixed = {n: values[n] for n in self.fixed}
        return self.executable(own, state, fixed, batch, hyper, seed, count)

    def gradients(self, values: Arrays, batch: Sequence[Any], seed: Any, count: Any) -> Any:
        """``(loss, gradients by name)`` of every connected trainable tensor, without an update; nothing is
        donated. The executable is compiled on first use."""
        used = {n: values[n] for n in (*self.program.reads, *self.program.large)}
        if "gradients" not in self.extra:
            inner = self.program.gradients(self.program.connected)

            def run(values: Arrays, batch: Sequence[Any], seed: Any, count: Any) -> Any:
                (loss, _), grads = inner(values, batch, step_key(seed, count))
                return loss, grads

            shapes = jax.tree.map(_shape, (used, list(batch), seed, count))
            with torch_numerics(self.program.matmul):
                self.extra["gradients"] = jax.jit(run).lower(*shapes).compile()
        return self.extra["gradients"](used, list(batch), seed, count)


def compile_step(
    program: Program, rule: Any, names: Sequence[str], values: Arrays, state: Any, batch: Any, hyper: Any
) -> Compiled:
    """Trace, lower and compile the step for these shapes. The arrays are only looked at."""
    from time import perf_counter

    from detente.bridge.choose.inside import update_inside

    own = tuple(dict.fromkeys((*names, *program.written)))
    fixed = tuple(n for n in (*program.reads, *program.large) if n not in own)
    shapes = jax.tree.map(_shape, (values, state, batch, hyper))
    values, state, batch, hyper = shapes
    arguments = (
        {n: values[n] for n in own},
        state,
        {n: values[n] for n in fixed},
        batch,
        hyper,
        jax.ShapeDtypeStruct((), jnp.uint32),
        jax.ShapeDtypeStruct((), jnp.uint32),
    )
    start = perf_counter()
    with torch_numerics(program.matmul):
        run = update_inside(program, rule, names) if program.inside else program.update(rule, names)
        lowered = jax.jit(run, donate_argnums=(0, 1)).lower(*arguments)
        middle = perf_counter()
        executable = lowered.compile()
    end = perf_counter()
    return Compiled(
        program, executable, lowered, own, fixed, {"lower": middle - start, "compile": end - middle}
    )


def _shape(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(value), value.dtype)
