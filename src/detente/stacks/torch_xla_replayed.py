"""The step of PyTorch/XLA without its tracing: the same program on the same runtime, dispatched as one operation.

The first steps are traced as ever. Of two of them it is read what each argument of the program is
(torch_xla_signature.py), and from then on the program is given its arguments, and its results are put in the state's
place. Dispatch, compiler and donation are those of the traced step; what is gone is that Python runs the module,
autograd and the optimizer's loop.

How it can fail: a program with a number that no formula of an optimizer's gives, or a batch of another shape later on.
Both are refused, with the reason: what was traced once must not stand for what was not. What Python decides by the
data's values is decided once; the proof's own numbers tell where that was wrong.
"""

from __future__ import annotations

from typing import Any

from detente.records.contract import Contract
from detente.stacks import torch_xla_private as private
from detente.stacks.protocol import Capture, Unavailable
from detente.stacks.torch_xla_lazy import TorchXla, XlaRunning
from detente.stacks.torch_xla_signature import BATCH, UNCOUNTED, Argument, Unsigned, number_of, signed
from detente.workloads.workload import Size, Workload

# The first step's program has the optimizer's fresh state as constants; the second's is the steady one.
_STEADY = 2
_REFUSED = "its step cannot be dispatched without being traced"


class XlaReplayedRunning(XlaRunning):
    """Traced until its program's arguments are known."""

    compiled_by = "lazy tensors, traced in the first steps alone"

    def __init__(self, stack: TorchXla, workload: Workload, size: Size, contract: Contract) -> None:
        if contract.region != "train-step":
            raise Unavailable(f"of a {contract.region} nobody knows what its program's arguments are")
        self._earlier: list[dict[str, Any]] = []
        self._program: Any = None
        self._known: list[Argument] = []
        self._results: list[str] = []
        self._constants: dict[int, Any] = {}
        self._held: dict[str, Any] = {}
        super().__init__(stack, workload, size, contract)

    def _wrap_step(self, step: Any) -> Any:
        self._dispatched = super()._wrap_step(step)
        return self._once

    def load(self, tensors: Any) -> None:
        # Steps are counted anew: one of before and one of after would not be two that follow each other.
        self._held, self._earlier = {}, []
        super().load(tensors)

    def _once(self, batch: Any) -> Any:
        if self._program is not None:
            return self._replayed(batch)
        if self._count() + 1 >= _STEADY:
            return self._read(batch)
        handle = self._dispatched(batch)
        if not self._count():
            raise Unavailable(f"{_REFUSED}: {UNCOUNTED}")
        return handle

    def _read(self, batch: Any) -> Any:
        """A traced step, and what the arguments of its program are. Where they are known for good, what was traced is
        left alone and the step dispatched as all that follow: its program is compiled before a window may begin."""
        named = self._named_tensors()
        held = {n: t for n, t in named.items() if not n.startswith(BATCH)}
        before = {n: private.as_it_is(t) for n, t in held.items()} if self._earlier else {}
        names = private.names_of(named)
        handle = self._trace(batch)
        state = [t for t in self._state() if t.device.type == "xla"]
        results = [handle[0], *state]
        try:
            arguments = private.arguments_of(results, names)
            data = private.hlo_proto(results)
            if not self._earlier:
                self.stack.xla.sync()
                self._earlier = arguments
                return handle
            self._known = signed(self._earlier, arguments, self.workload.optimizer, self._count() - 1)
        except (Unsigned, ValueError) as error:
            raise Unavailable(f"{_REFUSED}: {error}") from error
        self._results = self._result_names(named, state)
        self._program = private.computation_of(data)
        self._held = held
        del handle, results, state
        return self._dispatched_as_one(batch, before, self._count())

    def _replayed(self, batch: Any) -> Any:
        if not self._held:
            self._held = {n: t for n, t in self._named_tensors().items() if not n.startswith(BATCH)}
        counts = [s["step"] for s in self.optimizer.state.values() if "step" in s]
        self.torch._foreach_add_(counts, 1)
        return self._dispatched_as_one(batch, self._held, float(counts[0]))

    def _dispatched_as_one(self, batch: Any, before: dict[str, Any], count: float) -> Any:
        """The step from the state ``before``; its results are what the state's tensors hold afterwards."""
        kept = [before[n] for n in self._results if n in before]
        found = private.dispatched(self._program, self._given(batch, before, count), kept)
        for name, result in zip(self._results, found, strict=True):
            if name in self._held:
                private.replace_tensor(self._held[name], result)
        self.stack.xla.sync()
        return found[self._results.index("loss")], {}

    def _given(self, batch: Any, state: dict[str, Any], count: float) -> list[Any]:
        return [self._argument(k, one, batch, state, count) for k, one in enumerate(self._known)]

    def _argument(self, at: int, one: Argument, batch: Any, state: dict[str, Any], count: float) -> Any:
        name, dtype = one.get("name", ""), getattr(self.torch, one["dtype"])
        if not name:
            if at in self._constants:
                return self._constants[at]
            value = number_of(one, self.workload.optimizer, count)
            made = self.torch.full(one["shape"], value, dtype=dtype).to(self.stack.device)
            if "value" in one:
                self._constants[at] = made
            return made
        tensor = batch[name.removeprefix(BATCH)] if name.startswith(BATCH) else state[name]
        if list(tensor.shape) != one["shape"] or tensor.dtype != dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)} now and was {one['dtype']} {one['shape']} when the "
                "step was traced"
            )
        return tensor

    def programs(self) -> tuple[Capture, ...]:
        """Those of a step without tracing, which is made once more and thrown away."""
        if self._example is None:
            return ()
        while self._program is None:
            self.step(self._example)
        self.step(self._example)
        self.stack.wait()
        found = private.dispatched(
            self._program, self._given(self._example, self._held, self._count() + 1), []
        )
        captures = self._handed_over(found)
        del found
        self.stack.wait()
        return captures + self._profile()
