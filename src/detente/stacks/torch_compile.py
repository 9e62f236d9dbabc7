"""torch.compile: the whole region, or only the model as most people use it."""

from __future__ import annotations

import importlib
import os
import shutil
import sysconfig
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from detente.records.contract import Contract
from detente.stacks.inductor_private import Recorder
from detente.stacks.protocol import Arrays, Capture, CompileCount, Unavailable
from detente.stacks.torch_dynamo_private import DynamoCounters, plain_step, with_hooks
from detente.stacks.torch_eager import TorchEager, TorchRunning
from detente.workloads.names_asked import names_are_asked
from detente.workloads.workload import Size, Workload

MODE = "default"


class CompiledRunning(TorchRunning):
    """Forward and backward as one captured graph (``fullgraph=True``: a break is an error, not a slow surprise), the
    optimizer as another. Autograd is the seam: AOTAutograd compiles both directions when the loss is compiled."""

    stack: TorchCompile
    fullgraph = True
    compiles = "loss and backward, and of the update"

    recorder: Recorder | None = None
    backend: Any = "inductor"

    def _wrap_loss(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if names_are_asked():
            self.recorder = Recorder(self.module)
        return self._compiled_loss(loss)

    def _compiled_loss(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return self.torch.compile(loss, backend=self.backend, mode=MODE, fullgraph=self.fullgraph)

    def _update(self) -> None:
        with self.recorder.updating() if self.recorder is not None else nullcontext():
            self._compiled_step()

    def _compiled_step(self) -> None:
        if not hasattr(self, "_compiled_update"):
            update = with_hooks(self.optimizer, plain_step(self.optimizer))
            self._compiled_update = self.torch.compile(
                update, backend=self.backend, mode=MODE, fullgraph=True
            )
        self._compiled_update()

    def compiled(self) -> CompileCount:
        return self.stack.counters.count()

    def programs(self) -> tuple[Capture, ...]:
        """To a capture, the graphs that Inductor was given and the code that it wrote; takes some steps."""
        if self.recorder is None or self._example is None:
            return ()
        timed = self.stack.device.type == "cpu"
        return self.recorder.captures(lambda: self.step(self._example), timed)

    def practice(self) -> str:
        return f"{super().practice()}; torch.compile(mode={MODE!r}, fullgraph={self.fullgraph}) of {self.compiles}"


class ModelRunning(CompiledRunning):
    """The usual recipe: ``torch.compile(model)``; loss, backward's start and the optimizer stay eager."""

    fullgraph = False
    compiles = "the model alone"

    def _compiled_loss(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        self.module.compile(backend=self.backend, mode=MODE)
        return loss

    def _compiled_step(self) -> None:
        self.optimizer.step()


class TorchCompile(TorchEager):
    """torch.compile over the whole step."""

    def _import_all(self) -> None:
        importlib.import_module("torch._inductor.compile_fx")

    running = CompiledRunning
    # Inductor fuses the update itself; torch's fused kernel would be a call that it cannot look into.
    fused = False

    def start(self, device: str, precision: str, threads: int) -> str:
        platform = super().start(device, precision, threads)
        need_compiler(platform)
        self.counters = DynamoCounters()
        return platform

    def _left_behind(
        self, workload: Workload, size: Size, contract: Contract, batch: Arrays
    ) -> dict[str, int]:
        if self.device.type != "cpu":
            return {}
        from detente.stacks.torch_compile_plan import left_behind

        return left_behind(self, workload, size, contract, batch)


class TorchCompileModel(TorchCompile):
    """torch.compile over the model only."""

    running = ModelRunning


def need_compiler(platform: str) -> None:
    """Inductor writes C++ for the CPU and needs a compiler and Python's headers. Raises Unavailable without them."""
    if platform != "cpu":
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise Unavailable(
            f"torch.compile on the CPU needs a C++ compiler and there is no {compiler}: "
            "install g++ (Debian: apt install g++)"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise Unavailable(
            "torch.compile on the CPU needs Python's headers: install them (Debian: apt install python3-dev)"
        )
