"""The museum of unfair benchmarks, its torch rows: each stack here is honest but for one planted pitfall.

They are stacks of a user's own (``tests/museum/of_torch.py:Unsynchronised``), so that each fault runs through the
real worker, the real probes and the real judge. JAX's are in ``of_jax.py``: a module that imports both frameworks has
planted ``two-frameworks`` in every row of it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Queue
from typing import Any

import numpy as np

from detente.stacks.catalogue import STACKS
from detente.stacks.torch_compile import CompiledRunning, TorchCompile
from detente.stacks.torch_dynamo_private import plain_step
from detente.stacks.torch_eager import TorchEager, TorchRunning

# -- clock ------------------------------------------------------------------------------------------------------


class _UnsynchronisedRunning(TorchRunning):
    """Work goes to a queue, as a device's stream is one; ``synchronise`` forgets to wait for it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Bounded, as a device's launch queue is.
        self.queue: Queue[tuple[Any, dict[str, Any], threading.Event]] = Queue(maxsize=64)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            batch, box, done = self.queue.get()
            box["handle"] = self._run(batch)
            done.set()
            self.queue.task_done()

    # What reads or writes the weights stands in the same stream, behind the steps that were put there before.

    def load(self, tensors: Any) -> None:
        self.queue.join()
        super().load(tensors)

    def tensors(self) -> dict[str, np.ndarray]:
        self.queue.join()
        return super().tensors()

    def state(self) -> dict[str, np.ndarray]:
        self.queue.join()
        return super().state()

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        self.queue.join()
        return super().gradients(batch)

    def step(self, batch: Any) -> Any:
        box: dict[str, Any] = {}
        done = threading.Event()
        self.queue.put((batch, box, done))
        return box, done

    def synchronise(self, *handles: Any) -> None:
        """The planted fault: nothing is waited for."""

    def _wait(self, handle: Any) -> Any:
        handle[1].wait()
        return handle[0]["handle"]

    def loss(self, handle: Any) -> float:
        return super().loss(self._wait(handle))

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        return super().outputs(self._wait(handle))

    def devices(self, handle: Any) -> tuple[str, ...]:
        return super().devices(self._wait(handle))


class Unsynchronised(TorchEager):
    """AlgoPerf's runner does not synchronise JAX; here an asynchronous torch is not waited for."""

    running = _UnsynchronisedRunning


class _ReadsBackRunning(TorchRunning):
    def step(self, batch: Any) -> Any:
        loss, rest = super().step(batch)
        return float(loss), rest

    def devices(self, handle: Any) -> tuple[str, ...]:
        return ("cpu",)


class ReadsBack(TorchEager):
    """OpenXLA's suite copied PyTorch's outputs to the host inside the clock, and no other framework's."""

    running = _ReadsBackRunning


# -- the function -----------------------------------------------------------------------------------------------


class _ErfGeluRunning(TorchRunning):
    def _place_module(self, module: Any) -> Any:
        import torch

        for part in module.modules():
            for name, child in part.named_children():
                if "gelu" in type(child).__name__.lower():
                    setattr(part, name, torch.nn.GELU(approximate="none"))
        return super()._place_module(module)


class ErfGelu(TorchEager):
    """GELU by erf where the model says tanh."""

    running = _ErfGeluRunning


class _EpsilonRunning(TorchRunning):
    def _place_module(self, module: Any) -> Any:
        import torch

        for part in module.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.eps = 1e-6
        return super()._place_module(module)


class Epsilon(TorchEager):
    """Flax's default LayerNorm epsilon in a model that was trained with torch's."""

    running = _EpsilonRunning


class _OtherWeightsRunning(TorchRunning):
    def load(self, tensors: Mapping[str, np.ndarray]) -> None:
        last = sorted(tensors)[-1]
        super().load({n: (a + np.float32(1e-3) if n == last else a) for n, a in tensors.items()})


class OtherWeights(TorchEager):
    """One tensor is a little off."""

    running = _OtherWeightsRunning


class _DroppedTieRunning(TorchRunning):
    def _place_module(self, module: Any) -> Any:
        import torch

        module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.detach().clone())
        return super()._place_module(module)

    def load(self, tensors: Mapping[str, np.ndarray]) -> None:
        super().load({**tensors, "lm_head.weight": tensors["transformer.wte.weight"]})


class DroppedTie(TorchEager):
    """The head has its own copy of the embedding: same first loss, other gradients."""

    running = _DroppedTieRunning


class _Bf16ProductRunning(TorchRunning):
    def _place_module(self, module: Any) -> Any:
        import torch

        part = module.transformer.h[0].mlp.c_fc

        def forward(x: Any) -> Any:
            y = x.to(torch.bfloat16) @ part.weight.to(torch.bfloat16)
            return y.to(x.dtype) + part.bias

        part.forward = forward
        return super()._place_module(module)


class Bf16Product(TorchEager):
    """One product of many is rounded to bf16."""

    running = _Bf16ProductRunning


class _DropoutRunning(TorchRunning):
    def _place_module(self, module: Any) -> Any:
        import torch

        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.1
        return super()._place_module(module)


class Dropout(TorchEager):
    """Dropout on this side only."""

    running = _DropoutRunning


# -- what is fed to it ------------------------------------------------------------------------------------------


class _StaleRunning(TorchRunning):
    def place(self, batch: Any) -> Any:
        placed = super().place(batch)
        self.first = getattr(self, "first", placed)
        return self.first


class Stale(TorchEager):
    """Every step sees the first batch."""

    running = _StaleRunning


# -- what is compiled -------------------------------------------------------------------------------------------

# Captured by AOTAutograd and run by torch's own kernels: forward, backward and update are really captured, and none of
# them has to be compiled.
BACKEND = "aot_eager"


class _CapturedRunning(CompiledRunning):
    def _wrap_loss(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return self.torch.compile(loss, backend=BACKEND)

    def _update(self) -> None:
        if not hasattr(self, "_compiled_update"):
            self._compiled_update = self.torch.compile(plain_step(self.optimizer), backend=BACKEND)
        self._compiled_update()


class _BreaksRunning(_CapturedRunning):
    def _wrap_loss(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def broken(batch: Any) -> Any:
            found = loss(batch)
            self.torch._dynamo.graph_break()
            return found[0] * 1.0, found[1]

        return super()._wrap_loss(broken)


class Breaks(TorchCompile):
    """A compiled step that fell into pieces."""

    running = _BreaksRunning
    entry = replace(STACKS["torch-compile"], name="breaks", target="", default=False, caches={})


class _OptimizerOutsideRunning(_CapturedRunning):
    def _update(self) -> None:
        self.optimizer.step()


class OptimizerOutside(TorchCompile):
    """Keras against PyTorch: one side's whole step is one program, the other's optimizer runs beside it."""

    running = _OptimizerOutsideRunning
    entry = replace(STACKS["torch-compile"], name="outside", target="", default=False, caches={})


class _ModelOnlyRunning(_CapturedRunning):
    def _wrap_loss(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        self.module.compile(backend=BACKEND)
        return loss


class LossOutside(TorchCompile):
    """The model and the update are compiled, the loss between them is not."""

    running = _ModelOnlyRunning
    entry = replace(STACKS["torch-compile"], name="loss-outside", target="", default=False, caches={})


# -- what a step leaves behind ----------------------------------------------------------------------------------


class _NotFiniteRunning(TorchRunning):
    steps = 0

    def step(self, batch: Any) -> Any:
        self.steps += 1
        loss, rest = super().step(batch)
        return loss, {n: t / 0 for n, t in rest.items()} if self.steps > 6 else rest


class NotFinite(TorchEager):
    """What it returns once nobody compares is no number."""

    running = _NotFiniteRunning


class _WanderingRunning(TorchRunning):
    def step(self, batch: Any) -> Any:
        loss, rest = super().step(batch)
        return loss * (1 + 1e-3 * random.random()), rest


class Wandering(TorchEager):
    """The same step gives another loss every time."""

    running = _WanderingRunning
