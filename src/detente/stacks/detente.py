"""Détente: the bridge. The torch definition, unmodified, as one XLA program."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from detente.records.arm import Arm
from detente.records.chip import Chip
from detente.records.contract import Contract
from detente.records.precision import PRECISIONS
from detente.stacks.brought_along import by_jax
from detente.stacks.chips import device_of
from detente.stacks.installed_versions import installed_versions
from detente.stacks.jax_form import OF_THE_BRIDGE, form_of
from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_profile import profiled
from detente.stacks.jax_running import captures_of
from detente.stacks.moments import by_name
from detente.stacks.process_memory import keeps_freed, resident_beside
from detente.stacks.protocol import Arrays, Capture, CompileCount, Unavailable
from detente.stacks.torch_eager import optimizer_for
from detente.stacks.xla_memory import labelled_memory, live_bytes, planned_memory, read_plan
from detente.workloads.names_asked import names_are_asked
from detente.workloads.narrow import of_numpy, of_torch, to_torch
from detente.workloads.workload import Size, Workload


class DetenteRunning:
    """A torch module whose region runs on JAX. Nothing is captured before the first step: export, trace and
    compile belong to it. The certificate is off here, because the referee proves every cell itself."""

    # Whether the module's weights are memory, and not only addresses.
    holds_weights = True

    def __init__(self, stack: Detente, workload: Workload, size: Size, contract: Contract) -> None:
        import jax
        import torch

        self.jax, self.torch, self.stack = jax, torch, stack
        self.workload, self.contract = workload, contract
        self.definition = importlib.import_module(workload.definitions["torch"])
        self.precision = PRECISIONS[contract.precision]
        self.dtype = getattr(torch, self.precision.parameters)
        self.module = self._module(size).to(dtype=self.dtype)
        self.module.train(contract.region != "forward")
        self.persistent = set(self.module.state_dict())
        self.optimizer = optimizer_for(self.definition, contract, self.module, workload.optimizer)
        self.matmul = "tensorfloat32" if contract.precision == "tf32" else "highest"
        self.region: Any = None  # made by the first step
        self._example: Any = None

    def _module(self, size: Size) -> Any:
        before = self.torch.get_default_dtype()
        # Of narrow weights no wide ones are made first: 8 billion of them would take 32 GB, to be halved.
        self.torch.set_default_dtype(self.dtype if self.precision.narrow else before)
        try:
            return self.definition.build(size)
        finally:
            self.torch.set_default_dtype(before)

    def loss_and_outputs(self) -> Callable[[Any, Any], Any]:
        """The definition's loss at the contract's precision. It holds the definition and a dtype and nothing else:
        the persistent cache stores only programs whose loss it can describe to the last closure."""
        definition, compute = self.definition, getattr(self.torch, self.precision.compute)
        if compute == self.dtype:
            return definition.loss

        def loss(module: Any, batch: Any) -> Any:
            import torch

            with torch.autocast("cpu", dtype=compute):
                return definition.loss(module, batch)

        return loss

    def _make(self, batch: Any) -> Any:
        if self.contract.region == "train-step":
            return _Train(self, batch)
        return _Pure(self, batch)

    def _begun(self, batch: Any) -> Any:
        """The region with its weights, which the first step makes; a plan makes it without."""
        if self.region is None:
            self.region = self._make(batch)
            self.region.begin()
        return self.region

    # The Protocol -------------------------------------------------------------------------------------------

    def load(self, tensors: Arrays) -> None:
        torch = self.torch
        if self.region is not None:
            self.region.wait()
        with torch.no_grad():
            for name, target in self._named():
                target.copy_(to_torch(torch, tensors[name]))
        if self.region is not None:
            self.region.reload()

    def place(self, batch: Arrays) -> Any:
        from detente.bridge.state.place import place

        tensors = {n: self.torch.from_numpy(np.array(a)) for n, a in batch.items()}
        placed = place({n: t.to(self.dtype) if t.is_floating_point() else t for n, t in tensors.items()})
        self.jax.block_until_ready(placed.arrays)
        return placed

    def step(self, batch: Any) -> Any:
        self._example = batch
        return self._begun(batch).step(batch)

    def synchronise(self, *handles: Any) -> None:
        self.jax.block_until_ready((handles, self.region.arrays() if self.region else ()))

    def loss(self, handle: Any) -> float:
        return float(handle[0])

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        return {n: self._to_host(a) for n, a in handle[1].items()}

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        return {n: self._to_host(a) for n, a in self._begun(batch).gradients(batch).items() if a is not None}

    def tensors(self) -> dict[str, np.ndarray]:
        if self.region is None:
            return {n: np.array(of_torch(self.torch, t)) for n, t in self._named()}
        held = self.region.values()
        return {n: of_numpy(np.array(held[n], copy=True)) for n, _ in self._named()}

    def state(self) -> dict[str, np.ndarray]:
        if self.region is None:
            return self.tensors()
        values, moments = self.region.on_host()
        found = {n: of_numpy(values[n]) for n, _ in self._named()}
        kept = {n: {key: self._widened(a) for key, a in own.items()} for n, own in moments.items()}
        return found | by_name(kept, {n: np.shape(values[n]) for n in kept})

    def parameter_names(self) -> frozenset[str]:
        return frozenset(n for n, p in self.module.named_parameters() if p.requires_grad)

    def compiled(self) -> CompileCount:
        return self.stack.listener.count()

    def memory(self) -> dict[str, int]:
        return labelled_memory(self.stack.device, self._plan())

    def devices(self, handle: Any) -> tuple[str, ...]:
        leaves = self.jax.tree.leaves((handle, self.region.arrays()))
        return tuple(sorted({self.stack.platform_of(d) for leaf in leaves for d in leaf.devices()}))

    def practice(self) -> str:
        kind = f"{type(self.optimizer).__name__} as torch defines it; " if self.optimizer is not None else ""
        return f"{kind}one XLA program, state donated; matmul precision {self.matmul}{keeps_freed()}"

    def programs(self) -> tuple[Capture, ...]:
        if self.region is None:
            return ()
        found = captures_of("step", self.region.lowered, self.region.executable)
        if names_are_asked():
            found += profiled(self.jax, lambda: self.region.step(self._example))
        return found

    def plan(self, batch: Arrays) -> dict[str, int]:
        """Compiled as the first step does it. A live module beside the program's own weights is memory, too: it is here
        already, and is taken off what the process holds besides."""
        if self.region is None:
            self.region = self._make(self.place(batch))
        parameters = sum(
            t.numel() * t.element_size() for t in (*self.module.parameters(), *self.module.buffers())
        )
        found = planned_memory(self._plan(), parameters, max(self.region.argument_bytes() - parameters, 0))
        by_jax(self.jax)
        if found and self.stack.device.platform == "cpu":
            written = parameters if self.holds_weights else 0
            found["planned_base"] = resident_beside(live_bytes(self.jax) + written)
        beside = parameters if self.region.own_weights else 0
        return {**found, "planned_peak": found["planned_peak"] + beside} if found else {}

    # -----------------------------------------------------------------------------------------------------------

    def _plan(self) -> dict[str, float]:
        return read_plan(self.region.executable.memory_analysis() if self.region else None)

    def _named(self) -> list[tuple[str, Any]]:
        """Parameters (tied ones once) and persistent floating-point buffers."""
        named = list(self.module.named_parameters())
        return named + [
            (n, b) for n, b in self.module.named_buffers() if n in self.persistent and b.is_floating_point()
        ]

    def _to_host(self, array: Any) -> np.ndarray:
        # A copy: a zero-copy view of a CPU buffer would keep it alive and so forbid its donation.
        return self._widened(np.array(array, copy=True))

    def _widened(self, host: np.ndarray) -> np.ndarray:
        return host.astype(np.float32) if host.dtype.name in ("bfloat16", "float16") else host


class _Train:
    """The train step: ``detente.bridge.compile``, as a user calls it."""

    own_weights = True  # updated where they are, beside the module's

    def __init__(self, running: DetenteRunning, batch: Any) -> None:
        from detente import bridge

        self.jax = running.jax
        loss = running.loss_and_outputs()
        self.compiled_step = bridge.compile(
            running.module,
            lambda module, batch: loss(module, batch)[0],
            running.optimizer,
            example_batch=batch,
            certificate="none",
            matmul=running.matmul,
            nonfinite="return",
        )

    @property
    def lowered(self) -> Any:
        return self.compiled_step.programs[0].compiled.lowered

    @property
    def executable(self) -> Any:
        return self.compiled_step.programs[0].compiled.executable

    def begin(self) -> None:
        """The compiled step took the module's values when it was made."""

    def wait(self) -> None:
        """No step reads the module's memory."""

    def argument_bytes(self) -> int:
        return sum(a.nbytes for a in self.jax.tree.leaves(self.arrays()))

    def step(self, batch: Any) -> Any:
        return self.compiled_step(batch).array, {}

    def gradients(self, batch: Any) -> dict[str, Any]:
        return self.compiled_step.gradients(batch)

    def reload(self) -> None:
        module = self.compiled_step.model
        self.compiled_step.restart({**dict(module.named_parameters()), **dict(module.named_buffers())})

    def values(self) -> dict[str, Any]:
        return self.compiled_step.values()

    def on_host(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        return self.compiled_step.on_host()

    def arrays(self) -> Any:
        return self.compiled_step.arrays()


class _Pure:
    """``forward`` and ``gradient``: a captured program without an optimizer."""

    own_weights = False  # nothing writes them: on a CPU they are the module's

    def __init__(self, running: DetenteRunning, batch: Any) -> None:
        from detente.bridge.doors.region import compile_region

        region = running.contract.region
        self.running = running
        self.made = compile_region(
            running.module,
            running.loss_and_outputs(),
            batch,
            gradient=region == "gradient",
            batch_gradients=running.workload.batch_gradients,
            matmul=running.matmul,
        )
        self.lowered, self.executable = self.made.lowered, self.made.executable
        self._gradients: Callable[..., Any] | None = None

    def begin(self) -> None:
        self.made.load()

    def wait(self) -> None:
        self.made.wait()

    def argument_bytes(self) -> int:
        return self.made.argument_bytes()

    def step(self, batch: Any) -> Any:
        return self.made(batch)

    def gradients(self, batch: Any) -> dict[str, Any]:
        return self.made(batch)[1]

    def reload(self) -> None:
        self.made.load()

    def values(self) -> dict[str, Any]:
        return self.made.values

    def on_host(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        return {n: np.asarray(a) for n, a in self.made.values.items()}, {}

    def arrays(self) -> Any:
        return self.made.values


class Detente(JaxJit):
    """The bridge on JAX's default device."""

    def start(self, device: str, precision: str, threads: int) -> str:
        import torch

        torch.set_num_threads(threads)  # the export and the user's module run in torch
        # An import, like jax's own, and no part of a first step.
        importlib.import_module("detente.bridge.doors.entry")
        return super().start(device, precision, threads)

    def plan(self, workload: Workload, size: Size, contract: Contract, batch: Arrays) -> dict[str, int]:
        """Of a loss or a gradient whose weights are a quarter of this machine's memory none is written: a plan must not
        run out of the memory that it plans."""
        from detente.bridge.choose.memory import limit_bytes

        written = workload.parameters(size) * PRECISIONS[contract.precision].width
        there = limit_bytes(self.jax.devices("cpu")[0]) or 0
        if contract.region == "train-step" or 4 * written < there:
            return super().plan(workload, size, contract, batch)
        from detente.stacks.detente_on_chip import Unheld

        self.planned = Unheld(self, workload, size, contract)
        return self.planned.plan(batch)

    def versions(self) -> dict[str, str]:
        return installed_versions("detente", "torch", "transformers", "jax", "jaxlib", "numpy")

    def plans_on(
        self, chip: Chip, workload: Workload, size: Size, contract: Contract, batch: Arrays
    ) -> Iterator[tuple[str, dict[str, int]]]:
        from detente.stacks.detente_on_chip import Unheld, plans

        if "torch" not in workload.definitions:
            raise Unavailable(f"{workload.name} has no definition in torch")
        yield from plans(Unheld(self, workload, size, contract), chip, device_of(chip), batch)

    def build_under(self, arm: Arm, workload: Workload, size: Size, contract: Contract) -> Any:
        """The same with some of XLA's passes switched off, or without kernels of the bridge's. Raises Unavailable for
        any other arm."""
        from detente.bridge.kernels.build import decline
        from detente.bridge.program.xla_options import set_options

        form = form_of("detente", arm, OF_THE_BRIDGE)
        if not form.brings:
            decline()
        set_options(form.options)
        return self.build(workload, size, contract)

    def build(self, workload: Workload, size: Size, contract: Contract) -> Any:
        if "torch" not in workload.definitions:
            raise Unavailable(f"{workload.name} has no definition in torch")
        return DetenteRunning(self, workload, size, contract)
