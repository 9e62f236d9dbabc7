"""A step of JAX over a definition in parameters, other state and optimizer state: built, run, read, captured."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from detente.programs.scope import OPTIMIZER, ROOT
from detente.records.chip import Chip
from detente.records.contract import Contract
from detente.records.precision import PRECISIONS
from detente.stacks.brought_along import by_jax
from detente.stacks.chips import plan_on
from detente.stacks.jax_export import exported
from detente.stacks.jax_form import AS_IT_IS, JaxForm
from detente.stacks.jax_moments import read_moments, restored
from detente.stacks.jax_nnx import NnxParts
from detente.stacks.jax_profile import profiled
from detente.stacks.process_memory import keeps_freed
from detente.stacks.protocol import Arrays, Capture, CompileCount
from detente.stacks.xla_memory import labelled_memory, planned_memory, read_plan, with_buffers
from detente.workloads.names_asked import names_are_asked
from detente.workloads.narrow import of_numpy, to_numpy_of
from detente.workloads.weights import Leaves, WeightRule, to_canonical
from detente.workloads.workload import OptimizerSettings, Size, Workload


class JaxRunning:
    """A definition split into parameters, other state and optimizer state; the state lives here, donated from step to
    step."""

    def __init__(
        self,
        stack: Any,
        workload: Workload,
        size: Size,
        contract: Contract,
        scan: bool,
        form: JaxForm = AS_IT_IS,
    ) -> None:
        import jax

        self.jax, self.stack, self.contract, self.workload = jax, stack, contract, workload
        self.form = form
        self.dtype = PRECISIONS[contract.precision].parameters
        self.parts = _parts(workload, size, contract, scan)
        self.optimizer = (self.parts.optimizer if contract.optimizer is not None else None) or make_optimizer(
            contract.optimizer, workload.optimizer
        )
        # Shapes alone, until ``load``. Who steps without loading, or a definition with state that no rule names (a key
        # of random numbers), has the weights drawn.
        self.params, self.rest = self.parts.shapes()
        self.opt_state = jax.eval_shape(self.optimizer.init, self.params) if self.optimizer else None
        self._shapes_alone = True
        self._named = frozenset(rule.path for rule in self.rules)
        # What no rule names, as it was drawn: (array, the kind of key or None).
        self._unnamed: dict[Any, tuple[np.ndarray, Any]] = {}
        if any(path not in self._named for path, _ in self._leaves(self.params, self.rest)):
            self._draw()
            self._unnamed = {
                path: self._as_data(value)
                for path, value in self._leaves(self.params, self.rest)
                if path not in self._named
            }
        self.jitted, self.donated = self._region(contract.region)
        self._gradients: Callable[..., Any] | None = None
        self._example: Any = None
        self._planned: dict[str, float] | None = None

    @property
    def rules(self) -> tuple[WeightRule, ...]:
        return self.parts.rules

    def _draw(self) -> None:
        """The definition's own first weights."""
        self.params, self.rest = self.parts.drawn()
        self.opt_state = self.optimizer.init(self.params) if self.optimizer else None
        self._shapes_alone = False

    def _loss(self, params: Any, rest: Any, batch: Any) -> tuple[Any, Any]:
        with self.jax.named_scope(ROOT):
            return self.parts.loss(params, rest, batch)

    def _after_update(self, params: Any, found: Any, state: Any) -> tuple[Any, Any]:
        """New parameters and the optimizer's new state."""
        import optax

        with self.jax.named_scope(OPTIMIZER):
            updates, state = self.optimizer.update(found, state, params)
            return optax.apply_updates(params, updates), state

    def _region(self, region: str) -> tuple[Any, tuple[int, ...]]:
        """The jitted region, ``(params, rest, state, batch) -> (loss, outputs, params, rest, state)``, and what it
        donates. Parts that a region leaves alone are neither arguments' copies nor outputs."""
        jax = self.jax
        names = self.workload.batch_gradients

        def forward(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            loss, (outputs, _) = self._loss(params, rest, batch)
            return loss, outputs

        def gradient(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            wanted = {n: batch[n] for n in names}

            def of(both: Any) -> Any:
                return self._loss(both[0], rest, {**batch, **both[1]})

            (loss, (_, rest_after)), found = jax.value_and_grad(of, has_aux=True)((params, wanted))
            return loss, found, rest_after

        def train(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            (loss, (_, rest)), found = jax.value_and_grad(self._loss, has_aux=True)(params, rest, batch)
            params, state = self._after_update(params, found, state)
            return loss, params, rest, state

        if region == "train-step":
            return self.form.jit(jax, train, (0, 1, 2))
        if region == "gradient":
            return self.form.jit(jax, gradient, (1,))
        return self.form.jit(jax, forward, ())

    # The Protocol -------------------------------------------------------------------------------------------

    def load(self, tensors: Arrays) -> None:
        leaves = Leaves(self.rules, tensors)
        self._shapes_alone = False
        self.params = self._filled(self.params, leaves)
        self.rest = self._filled(self.rest, leaves)
        if self.optimizer:
            # Zeros of the shapes that ``init`` gave, made on the host: ``init`` itself would compile small programs.
            self.opt_state = self.jax.tree.map(
                lambda a: self._put(np.zeros(a.shape, a.dtype)), self.opt_state
            )

    def _put(self, array: np.ndarray) -> Any:
        # A copy on purpose: jax may alias host memory, and a donated alias of a mapped file would be a torn read.
        return self.jax.device_put(np.array(array, copy=True), self.stack.device)

    def _filled(self, state: Any, leaves: Mapping[Any, np.ndarray]) -> Any:
        """The state with these leaves; what no rule names (keys and counts of random numbers) as it was drawn."""

        def value_of(path: Any, old: Any) -> Any:
            if path in leaves:
                return self._put(to_numpy_of(leaves[path], old.dtype))
            array, key = self._unnamed[path]
            value = self._put(array)
            return value if key is None else self.jax.random.wrap_key_data(value, impl=key)

        return self.parts.filled(state, value_of)

    def _leaves(self, *states: Any) -> Iterator[tuple[Any, Any]]:
        for state in states:
            yield from self.parts.leaves(state)

    def _as_data(self, value: Any) -> tuple[np.ndarray, Any]:
        """A copy on the host, and the kind of key where it is one: numpy has no type for those."""
        jax = self.jax
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return np.array(jax.random.key_data(value)), jax.random.key_impl(value)
        return np.array(value), None

    def place(self, batch: Arrays) -> Any:
        placed = {
            n: self._put(a.astype(self.dtype) if a.dtype.kind == "f" else a)
            for n, a in self.parts.arranged(batch).items()
        }
        return self.jax.block_until_ready(placed)

    def step(self, batch: Any) -> Any:
        if self._shapes_alone:
            self._draw()
        self._example = batch
        region = self.contract.region
        if region == "train-step":
            loss, self.params, self.rest, self.opt_state = self.jitted(
                self.params, self.rest, self.opt_state, batch
            )
            return loss, {}
        if region == "gradient":
            loss, found, self.rest = self.jitted(self.params, self.rest, None, batch)
            return loss, found
        return self.jitted(self.params, self.rest, None, batch)

    def synchronise(self, *handles: Any) -> None:
        self.jax.block_until_ready((handles, self.params, self.rest, self.opt_state))

    def loss(self, handle: Any) -> float:
        return float(handle[0])

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        region = self.contract.region
        if region == "train-step":
            return {}
        if region == "forward":
            return {n: self._to_host(a) for n, a in handle[1].items()}
        return self._gradients_to_host(*handle[1])

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        if self._shapes_alone:
            self._draw()
        gradients = self._gradients = self._gradients or self.jax.jit(self.jax.grad(self._loss, has_aux=True))
        found, _ = gradients(self.params, self.rest, batch)
        return self._gradients_to_host(found, {})

    def _gradients_to_host(self, params: Any, batch: dict[str, Any]) -> dict[str, np.ndarray]:
        names = self.parameter_names()
        rules = [r for r in self.rules if r.name in names]
        found = to_canonical(rules, self._flat(params))
        return found | {f"batch:{n}": self._to_host(a) for n, a in batch.items()}

    def _flat(self, *states: Any, read: Callable[[Any], np.ndarray] | None = None) -> dict[Any, np.ndarray]:
        """The leaves that rules name on the host by path: copies, or as ``read`` gives them."""
        read = read or self._to_host
        return {path: read(value) for path, value in self._leaves(*states) if path in self._named}

    def _to_host(self, array: Any) -> np.ndarray:
        # A copy: a zero-copy view of a CPU buffer would keep it alive and so forbid its donation.
        return self._widened(np.array(array, copy=True))

    def _copied(self, array: Any) -> np.ndarray:
        """In its own dtype."""
        return of_numpy(np.array(array, copy=True))

    def _held(self, array: Any) -> np.ndarray:
        """In its own dtype, on the CPU a view."""
        return of_numpy(np.asarray(array))

    def _widened(self, array: Any) -> np.ndarray:
        # On the CPU a view.
        host = np.asarray(array)
        return host.astype(np.float32) if host.dtype.name in ("bfloat16", "float16") else host

    def tensors(self) -> dict[str, np.ndarray]:
        if self._shapes_alone:
            self._draw()
        return to_canonical(self.rules, self._flat(self.params, self.rest, read=self._copied))

    def state(self) -> dict[str, np.ndarray]:
        if self._shapes_alone:
            self._draw()
        tensors = to_canonical(self.rules, self._flat(self.params, self.rest, read=self._held))
        return {**tensors, **self._moments()}

    def _moments(self) -> dict[str, np.ndarray]:
        return read_moments(self)

    def adopt(self, state: Arrays) -> None:
        """Go on from a state that a process handed out (``state``), as the reference does where there is no torch.
        Raises KeyError for a tensor that it lacks; a moment that it lacks is zero."""
        self.load({rule.name: state[rule.name] for rule in self.rules})
        self.opt_state = restored(self, self.opt_state, state) if self.optimizer else None

    def parameter_names(self) -> frozenset[str]:
        paths = {path for path, _ in self._leaves(self.params)}
        return frozenset(r.name for r in self.rules if r.path in paths)

    def anchors(self) -> dict[str, str]:
        """Of a parameter that lies in several leaves, the module that holds them all."""
        found: dict[str, list[str]] = {}
        for rule in self.rules:
            held = [str(part) for part in rule.path[:-1]]
            kept = found.setdefault(rule.name, held)
            found[rule.name] = (
                [a for a, b in zip(kept, held, strict=False) if a == b] if kept != held else held
            )
        names = self.parameter_names()
        return {name: ".".join(path) for name, path in found.items() if name in names}

    def compiled(self) -> CompileCount:
        return self.stack.listener.count()

    def memory(self) -> dict[str, int]:
        return labelled_memory(self.stack.device, self._plan())

    def devices(self, handle: Any) -> tuple[str, ...]:
        leaves = self.jax.tree.leaves((handle, self.params))
        return tuple(sorted({self.stack.platform_of(d) for leaf in leaves for d in leaf.devices()}))

    def _arguments(self) -> tuple[Any, ...]:
        return self.params, self.rest, self.opt_state, self._example

    def plan(self, batch: Arrays) -> dict[str, int]:
        """From shapes alone: nothing is drawn, loaded or placed. Gradients and activations are the compiler's
        ``temporary``."""
        jax = self.jax
        self.executable = self.jitted.lower(*self._shapes(batch)).compile()
        by_jax(jax)
        return planned_memory(
            read_plan(self.executable.memory_analysis()),
            sum(v.size * v.dtype.itemsize for _, v in self._leaves(self.params, self.rest)),
            sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(self.opt_state)),
        )

    def _shapes(self, batch: Arrays) -> tuple[Any, ...]:
        """The step's arguments as shapes, before anything is drawn."""
        jax = self.jax
        shapes = {
            n: jax.ShapeDtypeStruct(
                a.shape, self.dtype if a.dtype.kind == "f" else jax.dtypes.canonicalize_dtype(a.dtype)
            )
            for n, a in self.parts.arranged(batch).items()
        }
        return self.params, self.rest, self.opt_state, shapes

    def plans_on(self, chip: Chip, device: Any, batch: Arrays) -> Iterator[tuple[str, dict[str, int]]]:
        """The step's plan on a chip that is not here, under the one form that it has."""
        yield "", plan_on(chip, device, self.jitted, *self._shapes(batch))

    def _compile_again(self) -> Any:
        """The step's executable. Found in JAX's own caches after a step has run, so this costs a trace."""
        return self.jitted.lower(*self._arguments()).compile()

    def _plan(self) -> dict[str, float]:
        """The executable's memory plan. It never changes, and asking costs a trace: asked once."""
        if self._planned is None and self._example is not None:
            self._planned = self._read_plan()
        return self._planned or {}

    def _read_plan(self) -> dict[str, float]:
        return read_plan(self._compile_again().memory_analysis())

    def practice(self) -> str:
        parts = ("params", "other state", "optimizer state")
        donated = ", ".join(parts[i] for i in self.donated) or "nothing"
        precision = self.jax.config.jax_default_matmul_precision
        return f"one jit, donates {donated}; matmul precision {precision}{keeps_freed()}"

    def programs(self) -> tuple[Capture, ...]:
        if self._example is None:
            return ()
        lowered = self.jitted.lower(*self._arguments())
        return captures_of("step", lowered, lowered.compile()) + self._profile() + self._exported()

    def _profile(self) -> tuple[Capture, ...]:
        """To a capture, how long each operation takes."""
        return profiled(self.jax, lambda: self.step(self._example)) if names_are_asked() else ()

    def _exported(self) -> tuple[Capture, ...]:
        """To a capture, the training step as another row can run it."""
        # A row under an arm is another's control, and its compiler's options are no part of a program.
        if not names_are_asked() or self.contract.region != "train-step" or self.form != AS_IT_IS:
            return ()
        return exported(self.jax, self.jitted, self._arguments())


def captures_of(name: str, lowered: Any, compiled: Any) -> tuple[Capture, ...]:
    """What one of JAX's programs gives away."""
    before = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    after = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    analysis = compiled.memory_analysis()
    plan = read_plan(analysis)
    return (
        Capture("hlo", name, before, plan),
        Capture("hlo-optimised", name, with_buffers(after, analysis), plan),
        Capture("stablehlo", name, lowered.as_text().encode()),
    )


def _parts(workload: Workload, size: Size, contract: Contract, scan: bool) -> Any:
    """What is stepped: a definition of our own kind, or one that brings its parts itself (a user's model)."""
    definition = importlib.import_module(workload.definitions["flax"])
    if hasattr(definition, "parts"):
        return definition.parts(size, contract)
    return NnxParts(workload, size, contract, scan)


def make_optimizer(name: str | None, settings: OptimizerSettings) -> Any:
    """optax's counterpart of torch's optimizer with the same settings."""
    import optax

    if name is None:
        return None
    if name == "adamw":
        return optax.adamw(
            settings.lr,
            b1=settings.betas[0],
            b2=settings.betas[1],
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
    return optax.sgd(settings.lr, momentum=settings.momentum)
