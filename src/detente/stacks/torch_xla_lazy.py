"""PyTorch/XLA: lazy tensors, and ``torch_xla.compile`` over the step.

What is different from eager torch, and how it can go wrong:

- A step only *traces*. ``torch_xla.sync()`` dispatches the trace; without it k steps fuse into one giant graph. So
  every step ends with one, and ``synchronise`` waits for the device besides: ``sync(wait=True)`` with nothing left to
  dispatch returns at once, while the program before it still runs.
- Writing into a tensor (``copy_``, ``zero_``) is an operation of the next graph. Weights are therefore *replaced*,
  which is a transfer and compiles nothing.
- ``Module.to`` makes new Parameters for this device and drops ties; they are tied again.
- The first step compiles with the optimizer's fresh zeros as constants, the second again with them as arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from detente.records.arm import Arm
from detente.records.contract import Contract
from detente.records.precision import PRECISIONS
from detente.stacks import torch_xla_private as private
from detente.stacks.best_seconds import best_seconds
from detente.stacks.installed_versions import installed_versions
from detente.stacks.protocol import Arrays, Capture, CompileCount, Unavailable
from detente.stacks.torch_eager import TorchEager, TorchRunning
from detente.stacks.torch_xla_names import Names
from detente.stacks.torch_xla_signature import BATCH, UNCOUNTED, Unsigned, signature
from detente.workloads.names_asked import names_are_asked
from detente.workloads.workload import Size, Workload


class XlaRunning(TorchRunning):
    """A torch module whose tensors are lazy."""

    stack: TorchXla
    compiled_by = "lazy tensors"
    unsigned = ""  # why no other runtime can run its program, where a capture found that

    def __init__(self, *args: Any) -> None:
        self._steps = 0
        self._example: Any = None
        super().__init__(*args)
        self.stack.wait()

    def _place_module(self, module: Any) -> Any:
        """To the device, with every tie kept."""
        ties: dict[int, list[tuple[Any, str]]] = {}
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                ties.setdefault(id(parameter), []).append((part, name))
        places = [p for p in ties.values() if len(p) > 1]
        module = super()._place_module(module)
        for (first, first_name), *others in places:
            for part, name in others:
                setattr(part, name, getattr(first, first_name))
        return module

    def _wrap_step(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        trace = self._traced(step)

        def dispatched(batch: Any) -> Any:
            handle = trace(batch)
            self.stack.xla.sync()
            return handle

        return dispatched

    def _traced(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The region, traced. The gradients of a train step are let go before the dispatch: a gradient that is
        still alive would be an output of the program, written to memory for nobody."""

        names = Names(self.module) if names_are_asked() else None
        if names is not None:
            self._backward = names.backward

        def trace(batch: Any) -> Any:
            with names.watched() if names is not None else nullcontext():
                handle = step(batch)
            self._clear_gradients()
            return handle

        self._trace = trace
        return trace

    # The Protocol -------------------------------------------------------------------------------------------

    def load(self, tensors: Arrays) -> None:
        torch = self.torch
        for name, target in self._named():
            target.data = torch.from_numpy(np.array(tensors[name])).to(self.dtype).to(self.stack.device)
        for value in self._optimizer_tensors():
            if value.device.type == "cpu":
                value.zero_()
            else:
                value.data = torch.zeros(value.shape, dtype=value.dtype).to(self.stack.device)
        self._clear_gradients()
        self.stack.wait()

    def step(self, batch: Any) -> Any:
        self._example = batch
        self._steps += 1
        return self._run(batch)

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        buffers = {n: t.detach().cpu() for n, t in self.module.named_buffers()}
        self._clear_gradients()
        loss, _ = self._loss(batch)
        loss.backward()
        grads = {n: p.grad for n, p in self.module.named_parameters() if p.grad is not None}
        self._clear_gradients()
        self.stack.wait()
        found = {n: self._to_host(g) for n, g in grads.items()}
        for name, target in self.module.named_buffers():
            target.data = buffers[name].to(self.stack.device)
        self.stack.wait()
        return found

    def compiled(self) -> CompileCount:
        return self.stack.compile_count()

    def traced(self) -> int:
        """Operations that one more step traces, by torch_xla's own count."""
        before = self.stack.traced_operations()
        self.step(self._example)
        self.stack.wait()
        return self.stack.traced_operations() - before

    def memory(self) -> dict[str, int]:
        info = private.memory_info(self.stack.device)
        peak = info.get("peak_bytes_used", 0)
        return {"live_tensors": int(peak)} if peak else {}

    def practice(self) -> str:
        return f"{super().practice()}; {self.compiled_by}, one sync a step"

    def programs(self) -> tuple[Capture, ...]:
        """Traces one more step, reads its graph, and throws the trace away: the state is put back afterwards."""
        if self._example is None:
            return ()
        self.stack.wait()
        state = self._state()
        kept = [t.detach().cpu().clone() for t in state]
        if self._steps < 2:
            # The steady program is the second one, and what it takes over is known once it has been compiled.
            self.step(self._example)
            self.stack.wait()
        # Ahead of the trace: what a step writes into has another number behind it.
        names = private.names_of(self._named_tensors()) if names_are_asked() else {}
        handle = self._trace(self._example)
        results = [handle[0], *(t for t in handle[1].values() if t is not None)]
        if self.contract.region == "train-step":
            results += [t for t in state if t.device.type == "xla"]
        found = self._handed_over(results)
        arguments, count = (self._arguments(results, names), self._count()) if names else ([], 0.0)
        del handle, results
        for name in self.workload.batch_gradients:
            # A gradient that stays alive would be dispatched, and compiled, by the next wait.
            self._example[name].grad = None
        for tensor, value in zip(state, kept, strict=True):
            tensor.data = value.to(tensor.device)
        self.stack.wait()
        if arguments and self.contract.region == "train-step":
            found += self._signature(arguments, count)
        return found + self._profile()

    def _signature(self, arguments: list[dict[str, Any]], count: float) -> tuple[Capture, ...]:
        """What the arguments and results are of the program of update number ``count``. Steps are taken until the next
        one's program has other numbers that the optimizer computed ahead."""
        while self._count() < count:
            before = self._count()
            self.step(self._example)
            self.stack.wait()
            if self._count() <= before:
                self.unsigned = UNCOUNTED
                return ()
        state = [t for t in self._state() if t.device.type == "xla"]
        named = self._named_tensors()
        names = private.names_of(named)
        handle = self._trace(self._example)
        results = [handle[0], *state]
        later = self._arguments(results, names)
        del handle, results
        self.stack.wait()
        said = self._result_names(named, state)
        try:
            data = signature(arguments, later, said, self.workload.optimizer, count)
        except (Unsigned, ValueError) as error:
            self.unsigned = str(error)
            return ()
        return (Capture("signature", "step", data),)

    def _count(self) -> float:
        """How many updates were traced: torch counts on the host. 0 where it does not."""
        if self.optimizer is None:
            return 0.0
        counts = {float(v) for s in self.optimizer.state.values() for k, v in s.items() if k == "step"}
        return counts.pop() if len(counts) == 1 else 0.0

    def _arguments(self, results: list[Any], names: dict[int, str]) -> list[dict[str, Any]]:
        """Each argument of the pending program: its name, or its value. None where one is neither."""
        try:
            return private.arguments_of(results, names)
        except ValueError as error:
            self.unsigned = str(error)
            return []

    def _named_tensors(self) -> dict[str, Any]:
        """Everything on the device that has a name: weights, what the optimizer keeps of each, the batch."""
        found = {f"tensors:{n}": t for n, t in self._named()}
        names = {p: n for n, p in self.module.named_parameters()}
        for parameter, kept in self.optimizer.state.items() if self.optimizer is not None else ():
            found |= {
                f"{k}:{names[parameter]}": v for k, v in kept.items() if isinstance(v, self.torch.Tensor)
            }
        found |= {BATCH + n: t for n, t in self._example.items()}
        return {n: t for n, t in found.items() if t.device.type == "xla"}

    # -----------------------------------------------------------------------------------------------------------

    def _handed_over(self, results: list[Any]) -> tuple[Capture, ...]:
        """The pending program of ``results``, and what the compiler made of the steady one."""
        donated = self._donated()
        facts = {} if donated is None else {"alias_bytes": float(donated)}
        return (
            Capture("hlo", "step", private.hlo_proto(results), facts),
            Capture("stablehlo", "step", private.stablehlo(results).encode(), facts),
            *self._optimised(facts),
        )

    def _result_names(self, named: dict[str, Any], state: list[Any]) -> list[str]:
        """Of a step's results: the loss, then ``state``; empty for what has no name."""
        objects = {id(t): n for n, t in named.items()}
        return ["loss", *(objects.get(id(t), "") for t in state)]

    def _optimised(self, facts: dict[str, float]) -> tuple[Capture, ...]:
        """What the compiler made of the steady step: to a capture, which had it dumped."""
        data = self.stack.dump.latest() if self.stack.dump is not None else None
        return () if data is None else (Capture("hlo-optimised", "step", data, facts),)

    def _profile(self) -> tuple[Capture, ...]:
        """To a capture, how long each operation takes."""
        if self.stack.dump is None:
            return ()

        def step() -> None:
            self.step(self._example)
            self.stack.wait()

        found = private.profiled(step)
        return () if found is None else (Capture("xplane", "step", *found),)

    def _optimizer_tensors(self) -> list[Any]:
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        return [v for s in states for v in s.values() if isinstance(v, self.torch.Tensor)]

    def _state(self) -> list[Any]:
        """Everything that a step may change: parameters, buffers, the optimizer's tensors."""
        return [*self.module.parameters(), *self.module.buffers(), *self._optimizer_tensors()]

    def _donated(self) -> int | None:
        """Bytes of state that the step's program takes over. torch_xla counts aliased buffers, not bytes: known
        only where it counts at least as many as there are tensors of state on the device."""
        if self.contract.region != "train-step":
            return 0
        trained = [p for p in self.module.parameters() if p.requires_grad]
        state = [t for t in (*trained, *self._optimizer_tensors()) if t.device.type == "xla"]
        aliased = self.stack.last_alias_count()
        return sum(t.numel() * t.element_size() for t in state) if aliased >= len(state) else None


class XlaCompileRunning(XlaRunning):
    """The same under ``torch_xla.compile``: still traced at every call, but dispatched as one named graph."""

    compiled_by = "torch_xla.compile"

    def _wrap_step(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        # full_graph=True would refuse GPT2LMHeadModel, whose mask code reads one value back to the host.
        return self.stack.xla.compile(self._traced(step), full_graph=False, name="step")


class TorchXla(TorchEager):
    """PyTorch/XLA, lazy."""

    running = XlaRunning
    dump: private.Dump | None = None  # what the compiler makes, in a process that captures
    fused = False  # torch has no fused kernel for XLA tensors

    def start(self, device: str, precision: str, threads: int) -> str:
        if device in ("cuda", "rocm"):
            raise Unavailable(f"{device}: PyTorch/XLA supports no GPU since 2.9 (pytorch/xla#9597)")
        if precision == "tf32":
            raise Unavailable("tf32: PyTorch/XLA runs on CPU and TPU here, which have no TF32 unit")
        if "torch_xla" not in sys.modules:
            # Read once, when the runtime starts.
            wanted = os.environ.get("PJRT_DEVICE", "CPU") if device == "auto" else device.upper()
            os.environ["PJRT_DEVICE"] = wanted
            if names_are_asked():
                os.environ |= {"XLA_HLO_DEBUG": "1", "XLA_IR_DEBUG": "1"}
                self.dump = private.Dump()
        import torch

        torch.set_num_threads(threads)
        try:
            import torch_xla
            import torch_xla.backends
            import torch_xla.core.xla_model
            import torch_xla.debug.metrics

            self.device = torch_xla.device()
            self.platform = private.real_platform(self.device)
        except (RuntimeError, AssertionError, ValueError, OSError) as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]
            raise Unavailable(f"{device}: PyTorch/XLA has no such device here ({said})") from None
        self.torch, self.xla = torch, torch_xla
        self.metrics = torch_xla.debug.metrics
        if device not in ("auto", self.platform):
            raise Unavailable(f"{device}: PyTorch/XLA runs on {self.platform} here")
        self.compute = getattr(torch, PRECISIONS[precision].compute)
        if self.platform != "cpu":
            # TPUs multiply fp32 in bf16 passes unless asked.
            torch_xla.backends.set_mat_mul_precision("highest")
        return self.platform

    def platform_of(self, tensor: Any) -> str:
        return self.platform if tensor.device.type == "xla" else f"host-{tensor.device.type}"

    def build_under(self, arm: Arm, workload: Workload, size: Size, contract: Contract) -> XlaRunning:
        """The same under an arm. Raises Unavailable for one that this step cannot be built under."""
        from detente.stacks.torch_xla_replayed import XlaReplayedRunning

        if dict(arm.settings) != {"tracing": "off"}:
            raise Unavailable(f"{arm.name}: PyTorch/XLA is built under tracing=off alone")
        if "torch" not in workload.definitions:
            raise Unavailable(f"{workload.name} has no definition in torch")
        return XlaReplayedRunning(self, workload, size, contract)

    def wait(self) -> None:
        """Dispatch what is still only traced, then wait until the device is idle."""
        self.xla.sync(wait=True)
        self.xla.core.xla_model.wait_device_ops()

    def compile_count(self) -> CompileCount:
        """From torch_xla's own ``CompileTime``: (samples, nanoseconds in all, the last samples)."""
        data = self.metrics.metric_data("CompileTime")
        return CompileCount() if data is None else CompileCount(int(data[0]), data[1] * 1e-9)

    def traced_operations(self) -> int:
        data = self.metrics.metric_data("LazyTracing")
        return 0 if data is None else int(data[0])

    def last_alias_count(self) -> int:
        """Buffers that the most recently compiled graph with any took over from its arguments."""
        data = self.metrics.metric_data("InputOutputAliasCount")
        values = [int(v) for _, v in data[2]] if data is not None else []
        return next((v for v in reversed(values) if v > 0), 0)

    def counters(self) -> dict[str, int]:
        """Graphs dispatched and values read back to the host while tracing, since the start."""

        def value(name: str) -> int:
            return int(self.metrics.counter_value(name) or 0)

        return {
            "dispatches": value("CachedCompile") + value("UncachedCompile"),
            "host_reads": value("aten::_local_scalar_dense"),
        }

    def versions(self) -> dict[str, str]:
        return installed_versions("torch", "torch_xla", "transformers", "numpy")

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        torch = self.torch
        x, y = (torch.from_numpy(np.array(v)).to(self.compute).to(self.device) for v in (a, b))
        return (x @ y).cpu().to(torch.float64).numpy()

    def product_seconds(self, m: int, k: int, n: int, repeats: int) -> float:
        torch = self.torch
        x, y = (torch.rand(*s).to(self.compute).to(self.device) for s in ((m, k), (k, n)))
        self.wait()
        return best_seconds(lambda: x @ y, lambda _: self.wait(), repeats)

    def copy_seconds(self, elements: int, repeats: int) -> float:
        x = self.torch.ones(elements).to(self.device)
        self.wait()
        # A plain copy would be an alias, which moves nothing.
        return best_seconds(lambda: -x, lambda _: self.wait(), repeats)


class TorchXlaCompile(TorchXla):
    """PyTorch/XLA with ``torch_xla.compile`` over the region."""

    running = XlaCompileRunning
