"""One captured graph as JAX functions: the loss, its gradient, and the whole step as one donated
executable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.graph import Graph, refs
from detente.bridge.kernels.build import called, calling
from detente.bridge.kernels.updates import order
from detente.bridge.lower.backwards import backwards
from detente.bridge.lower.driver import Trace, evaluate
from detente.bridge.lower.dtypes import torchs_gradient
from detente.bridge.lower.faults import NO_FAULT, Sites
from detente.bridge.lower.precision import torch_numerics, x64
from detente.bridge.optim.accumulate import accumulated
from detente.bridge.optim.run import unless
from detente.bridge.passes.connected import connected
from detente.bridge.program.inside import update_inside
from detente.bridge.program.xla_options import options as xla_options
from detente.bridge.random.keys import step_key
from detente.bridge.refusal import Reason, Refused
from detente.bridge.telling import phase

Arrays = dict[str, Any]
EMBED = 1 << 14  # elements; bigger constants are arguments, so that the compiler does not carry them about
TRAINS_NOTHING = Reason(
    "loss",
    "no parameter that takes a gradient has a part in the loss",
    hint="eager PyTorch's backward() raises here; step.evaluate(batch) and detente.functional train nothing",
)


@dataclass
class Program:
    """``graph`` (in any form) with what it takes and gives by name. Pure: it holds no arrays but the graph's
    constants.

    ``stacks`` maps a stacked name to torch's names (rolled forms; empty otherwise). ``reached`` are torch's
    names of the trainable tensors that the loss is connected to, taken from the unrolled graph (default:
    from this one).
    ``inside``: the step updates each layer inside the backward loop. ``parts``: a batch is this many
    micro-batches, and the graph is one micro-batch's.
    """

    graph: Graph
    matmul: str = "highest"
    stacks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reached: frozenset[str] | None = None
    inside: bool = False
    parts: int = 1
    sites: Sites = field(default_factory=Sites)

    def members(self, name: str) -> tuple[str, ...]:
        """torch's names of what is called ``name`` here."""
        return tuple(self.stacks.get(name, (name,)))

    @cached_property
    def connected(self) -> tuple[str, ...]:
        """Trainable names that the loss is connected to, in input order; torch gives the others no
        gradient."""
        reached = connected(self.graph) if self.reached is None else self.reached
        own = (i.name for i in self.graph.inputs if i.trainable)
        return tuple(n for n in own if n in reached or self.members(n)[0] in reached)

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

    def bind(self, values: Mapping[str, Any], batch: Sequence[Any]) -> dict[int, Any]:
        """Graph inputs by id. ``values`` holds parameters, buffers and large constants by name; ``batch``
        the tensor leaves in order."""
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

    def split(self, results: Sequence[Any]) -> tuple[Any, tuple[Any, ...], Arrays]:
        """The graph's outputs as ``(loss, aux leaves and what is kept, new buffers by name)``."""
        loss, aux, buffers = None, [], {}
        for output, value in zip(self.graph.outputs, results, strict=True):
            if output.kind == "loss":
                loss = value
            elif output.kind == "buffer":
                buffers[output.name] = value
            else:
                aux.append(value)
        return loss, tuple(aux), buffers

    def forward(
        self, values: Mapping[str, Any], batch: Sequence[Any], key: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """``(loss, (aux leaves, new buffers by name, fault word))``. A buffer that is written behind what raises stays
        as it was, and one that is written before has its new value, as in torch. JAX-traceable, under
        ``torch_numerics``."""
        trace = Trace(self.sites, key)
        loss, aux, buffers = self.split(evaluate(self.graph, self.bind(values, batch), trace))
        for output in self.graph.outputs:
            if output.kind == "buffer":
                word = trace.word_before([ref.id for ref in refs(output.value)])
                new = buffers[output.name]
                buffers[output.name] = unless(self.faulted(word), new, values[output.name])
        return loss, (aux, buffers, trace.word())

    def faulted(self, word: Any) -> Any:
        """Whether this word says that torch would have raised, a 0-d bool; None where nothing that was traced can."""
        return None if word is None or not self.sites.rows else word != NO_FAULT

    def gradients(self, names: Sequence[str]) -> Callable[..., Any]:
        """``f(values, batch, key) -> ((loss, (aux, buffers, word)), gradients by name)`` for ``names``."""

        def run(values: Arrays, batch: Sequence[Any], key: Any) -> Any:
            params = {n: values[n] for n in names}
            rest = {n: v for n, v in values.items() if n not in params}
            found, grads = jax.value_and_grad(
                lambda p: self.forward({**rest, **p}, batch, key), has_aux=True
            )(params)
            return found, {name: torchs_gradient(g) for name, g in grads.items()}

        return run

    def step_gradients(self, names: Sequence[str]) -> Callable[..., Any]:
        """``f(values, batch, seed, count)`` with the result of ``gradients``, over all micro-batches of a step."""
        inner = self.gradients(names)
        if self.parts == 1:
            return lambda values, batch, seed, count: inner(values, batch, step_key(seed, count))
        kept = sum(output.kind == "kept" for output in self.graph.outputs)
        run = accumulated(inner, self.parts, last=kept)

        def parts(values: Arrays, batch: Sequence[Any], seed: Any, count: Any) -> Any:
            def key_of(part: Any) -> Any:
                return step_key(seed, count * jnp.uint32(self.parts) + part.astype(jnp.uint32))

            return run(values, batch, key_of)

        return parts

    def update(self, rule: Any, names: Sequence[str]) -> Callable[..., Any]:
        """The step: ``f(own, state, fixed, batch, hyper, seed, count) -> (own, state, loss, aux, word)``.

        ``own`` (what the step changes: the parameters ``names`` and the written buffers) and ``state`` are
        meant to be donated.
        """
        if self.inside:
            return update_inside(self, rule, names)
        gradients = self.step_gradients(names)

        def step(
            own: Arrays, state: Any, fixed: Arrays, batch: Any, hyper: Any, seed: Any, count: Any
        ) -> Any:
            (loss, (aux, buffers, word)), grads = gradients({**fixed, **own}, batch, seed, count)
            params = {n: own[n] for n in names}
            # Torch raises in the forward pass, and updates nothing.
            skip = self.faulted(word)
            params, state = rule.apply(params, grads, state, hyper, self.stacks, skip=skip)
            state = rule.rested(state, {**fixed, **own}, names, skip)
            return {**own, **buffers, **params}, state, loss, aux, word

        return step


@dataclass(frozen=True)
class Compiled:
    """A program as an executable. ``own`` are the names that the step donates and gives back, ``fixed``
    those that it only reads, ``names`` the parameters that it updates. ``seconds`` by phase: ``lower``
    (trace and StableHLO) and
    ``compile`` (XLA). ``arguments`` are the shapes it was compiled for."""

    program: Program
    executable: Any
    arguments: tuple[Any, ...]
    own: tuple[str, ...]
    fixed: tuple[str, ...]
    names: tuple[str, ...]
    constants: Arrays
    seconds: Mapping[str, float]
    extra: dict[str, Any] = field(default_factory=dict, compare=False)  # made on demand: gradients, lowered
    rule: Any = field(default=None, compare=False)
    calls: int | None = None  # kernels that are not XLA's (bridge/kernels); None: there are none
    loops: tuple[int, ...] = ()  # keys of the updates among them

    def __call__(
        self, values: Arrays, state: Any, batch: Sequence[Any], hyper: Any, seed: Any, count: Any
    ) -> tuple[Arrays, Any, Any, Any, Any]:
        """One step: ``(changed values, state, loss, aux, word)``. ``values`` and ``state`` are used up."""
        own, fixed = self.parts(values)
        return self.executable(own, state, fixed, batch, hyper, seed, count)

    def parts(self, values: Arrays) -> tuple[Arrays, Arrays]:
        """Of ``values`` what the executable uses up, and what it only reads."""
        return {n: values[n] for n in self.own}, {n: values[n] for n in self.fixed} | self.constants

    @property
    def lowered(self) -> Any:
        """The ``jax.stages.Lowered`` of the step; traced again when the executable came from the cache."""
        if "lowered" not in self.extra:
            self.extra["lowered"] = lower_step(self.program, self.rule, self.names, self.arguments)
        return self.extra["lowered"]

    def stored(self) -> Compiled:
        """Without what cannot be pickled."""
        return replace(self, executable=None, rule=None, constants={}, extra={})

    def loaded(self, executable: Any, rule: Any) -> Compiled:
        """The inverse of ``stored``."""
        return replace(
            self, executable=executable, rule=rule, constants=large_constants(self.program), extra={}
        )

    def gradients(self, values: Arrays, batch: Sequence[Any], seed: Any, count: Any) -> Any:
        """``(fault word, gradients by name)`` of every connected trainable tensor, without an update; nothing is
        donated. The executable is compiled on first use."""
        used = {n: values[n] for n in self.program.reads} | self.constants
        if "gradients" not in self.extra:
            inner = self.program.step_gradients(self.program.connected)

            def run(values: Arrays, batch: Sequence[Any], seed: Any, count: Any) -> Any:
                (_, (_, _, word)), grads = inner(values, batch, seed, count)
                return word, grads

            shapes = jax.tree.map(shape_of, (used, list(batch), seed, count))
            with phase("compile"), torch_numerics(self.program.matmul), backwards(), calling():
                lowered = jax.jit(run).lower(*shapes)
                called(lowered.compiler_ir())  # a certificate is of what a step runs
                self.extra["gradients"] = lowered.compile()
        return self.extra["gradients"](used, list(batch), seed, count)


def compile_step(
    program: Program,
    rule: Any,
    values: Arrays,
    state: Any,
    batch: Any,
    hyper: Any,
    meanwhile: Callable[[], None] = lambda: None,
) -> Compiled:
    """Trace, lower and compile the step. ``values``, ``state``, ``batch`` and ``hyper`` may be arrays or
    shapes, by the program's names; they are only looked at. ``meanwhile`` is called when XLA begins: for a second or
    more it holds no lock of Python's."""
    if not program.connected:
        raise Refused([TRAINS_NOTHING])
    names = tuple(n for n in program.connected if program.members(n)[0] in rule.programs)
    own = tuple(dict.fromkeys((*names, *program.written)))
    seen = (*program.reads, *rule.resting(state, names))
    fixed = tuple(n for n in dict.fromkeys(seen) if n not in own)
    constants = large_constants(program)
    values, state, batch, hyper, large = jax.tree.map(shape_of, (values, state, batch, hyper, constants))
    number = jax.ShapeDtypeStruct((), jnp.uint32)
    arguments = (
        {n: values[n] for n in own},
        state,
        {n: values[n] for n in fixed} | large,
        batch,
        hyper,
        number,
        number,
    )
    start = perf_counter()
    with phase("lower"):
        with calling():
            lowered = lower_step(program, rule, names, arguments)
        calls = called(lowered.compiler_ir())
        loops = order(lowered.compiler_ir())
    middle = perf_counter()
    with phase("compile"):
        meanwhile()
        executable = lowered.compile(compiler_options=xla_options() or None)
    seconds = {"lower": middle - start, "compile": perf_counter() - middle}
    # What is captured and carried to other places calls nothing of ours: it is lowered anew, should anybody ask.
    extra = {} if calls else {"lowered": lowered}
    return Compiled(
        program, executable, arguments, own, fixed, names, constants, seconds, extra, rule, calls, loops
    )


def lower_step(program: Program, rule: Any, names: Sequence[str], arguments: tuple[Any, ...]) -> Any:
    """Trace and lower the step for these shapes, with what it changes donated."""
    with torch_numerics(program.matmul), backwards():
        return jax.jit(program.update(rule, names), donate_argnums=(0, 1)).lower(*arguments)


def exported(compiled: Compiled, platforms: Sequence[str] | None = None) -> Any:
    """The step as ``jax.export.Exported`` (StableHLO with a calling convention, serialisable), for platforms that need
    not be here; default: the one that is."""
    from jax import export

    program, rule, names = compiled.program, compiled.rule, compiled.names
    with torch_numerics(program.matmul):
        step = jax.jit(program.update(rule, names), donate_argnums=(0, 1))
        return export.export(step, platforms=None if platforms is None else tuple(platforms))(
            *compiled.arguments
        )


def large_constants(program: Program) -> Arrays:
    """Big constants on the device."""
    with x64():
        return {n: jax.device_put(v) for n, v in program.large.items()}


def shape_of(value: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array (or of a shape)."""
    return jax.ShapeDtypeStruct(np.shape(value) if not hasattr(value, "shape") else value.shape, value.dtype)
