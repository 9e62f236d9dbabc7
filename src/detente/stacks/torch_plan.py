"""What a torch region holds at each moment, without any of it: the region runs on fake tensors, and every memory that
it makes is counted from its making until nobody holds it.

Autograd runs, too, so that what it saves for the backward pass is held for as long as it is. What the allocator keeps
beside the tensors is asked of the allocator (allocator_replay.py). What kernels take for themselves and give back (a
convolution's scratch) is not seen.

Private names of torch's: ``torch._subclasses`` (tested with 2.9 to 2.13; tests/stacks/test_plans.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from detente.stacks.allocator_replay import Event, held
from detente.stacks.torch_eager import TorchEager, TorchRunning, optimizer_for
from detente.stacks.torch_undrawn import undrawn
from detente.workloads.workload import Size, Workload


class Live(TorchDispatchMode):
    """Bytes that are held ``now``, the most so far, and every making and freeing as ``events``. Views hold what they
    show."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.events: list[Event] = []
        self._held: dict[int, int] = {}

    def hold(self, tensor: torch.Tensor) -> None:
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key in self._held:
            return
        self._held[key] = memory.nbytes()
        self.events.append(Event(key, self._held[key]))
        self.now += self._held[key]
        self.most = max(self.most, self.now)
        weakref.finalize(memory, self._drop, key).atexit = False

    def _drop(self, key: int) -> None:
        if key in self._held:
            self.now -= self._held.pop(key)
            self.events.append(Event(key, None))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self.hold(value)
        return found


class Planned(TorchRunning):
    """Parameters that are not of the contract's dtype are made anew: fake ones cannot be converted in place."""

    def _place_module(self, module: Any) -> Any:
        made: dict[int, torch.nn.Parameter] = {}  # a tied one stays one
        for part in module.modules():
            for name, old in part._parameters.items():
                if old is not None and old.is_floating_point() and old.dtype != self.dtype:
                    new = torch.nn.Parameter(old.detach().to(self.dtype), old.requires_grad)
                    part._parameters[name] = made.setdefault(id(old), new)
            for name, old in part._buffers.items():
                if old is not None and old.is_floating_point():
                    part._buffers[name] = old.to(self.dtype)
        return module

    def fake(
        self, fake: Callable[[torch.Tensor], torch.Tensor], hold: Callable[[torch.Tensor], None]
    ) -> None:
        """Every tensor of a module that was made for real becomes a fake one, and the optimizer one of those."""
        made: dict[int, Any] = {}
        for part in self.module.modules():
            for name, old in part._parameters.items():
                if old is not None:
                    new = made.setdefault(id(old), torch.nn.Parameter(fake(old.detach()), old.requires_grad))
                    hold(new)
                    part._parameters[name] = new
            for name, old in part._buffers.items():
                if old is not None:
                    part._buffers[name] = made.setdefault(id(old), fake(old))
                    hold(made[id(old)])
        self.optimizer = optimizer_for(
            self.definition, self.contract, self.module, self.workload.optimizer, fused=self.stack.fused
        )

    def placed(self, fake: FakeTensorMode, batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        found = {n: fake.from_tensor(torch.from_numpy(np.array(a))) for n, a in batch.items()}
        return {n: t.to(self.dtype) if t.is_floating_point() else t for n, t in found.items()}


def made(kind: type[Planned], fake: FakeTensorMode, *what: Any) -> tuple[Planned, Live]:
    """The region of ``what`` (stack, workload, size, contract) on fake tensors, and what it holds now."""
    live = Live()
    try:
        with live, fake:
            return kind(*what), live
    except DataDependentOutputException:
        # Its making reads a number of a tensor (ViT's rates of stochastic depth): made for real, of memory that nobody
        # touches, and faked behind it.
        live = Live()
        with undrawn():
            running = kind(*what)
        with live, fake:
            running.fake(fake.from_tensor, live.hold)
        return running, live


def plan(
    stack: TorchEager, workload: Workload, size: Size, contract: Any, batch: Mapping[str, np.ndarray]
) -> dict[str, int]:
    """Bytes of one region, from its second step on (the first one makes the optimizer's state): ``parameters`` with
    buffers, ``gradients``, ``state`` of the optimizer, ``activations`` that are held when the loss is known, the batch
    among them, and the ``peak`` of all that is held at once. ``kept``, of a third step on a CPU: what the allocator
    holds beside the peak, as the memory worker measures it."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    running, live = made(Planned, fake, stack, workload, size, contract)
    with live, fake:
        parameters = live.now
        placed = running.placed(fake, batch)
        before = after = since = 0

        def watched(loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def run(given: Any) -> Any:
                nonlocal before, after
                before = live.now
                found = loss(given)
                after = live.now
                return found

            return run

        running._loss = watched(running._loss)
        for _ in range(3):
            live.most, since = live.now, len(live.events)
            handle = running.step(placed)
            del handle  # whoever trains lets go of a loss before the next step
        inputs = sum(t.untyped_storage().nbytes() for t in placed.values())
        gradients = sum(p.numel() * p.element_size() for p in running.module.parameters() if p.requires_grad)
        moments = running.optimizer.state if running.optimizer is not None else {}
        state = sum(
            v.numel() * v.element_size()
            for one in moments.values()
            for v in one.values()
            if isinstance(v, torch.Tensor)
        )
    held_in_all = held(live.events, since) if stack.device.type == "cpu" else None
    kept = {} if held_in_all is None else {"planned_kept": max(held_in_all - live.most, 0)}
    return {
        **kept,
        "planned_parameters": parameters,
        "planned_gradients": gradients if contract.region != "forward" else 0,
        "planned_state": state,
        "planned_activations": after - before + inputs,
        "planned_peak": live.most,
    }
