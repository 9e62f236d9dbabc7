"""What torch.compile leaves in a process beside its tensors, found before there are any.

Dynamo's guards, its graphs and what Inductor remembers stay for as long as the process lives: of a training step of
ResNet-50 270 MB, beside 707 MB of tensors. The region is compiled as the row compiles it, on fake tensors, and nothing
of it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch._subclasses.fake_tensor import FakeTensorMode

from detente.stacks.inductor_private import compiled_and_not_run
from detente.stacks.process_memory import forget_peak, resident
from detente.stacks.torch_plan import Planned, made
from detente.workloads.workload import Size, Workload

if TYPE_CHECKING:
    from detente.stacks.torch_compile import TorchCompile


def left_behind(
    stack: TorchCompile, workload: Workload, size: Size, contract: Any, batch: Mapping[str, np.ndarray]
) -> dict[str, int]:
    """``planned_compiler``, bytes. Empty where the region does not compile on fake tensors, and the log says so: one
    that reads a number of a tensor does not, and torch 2.9 compiles none (its Dynamo makes fake tensors of its own and
    refuses another's; 2.13 takes them). The row itself may compile all the same."""
    forget_peak()
    before = resident()
    try:
        with compiled_and_not_run() as backend:
            # As a row's own, with the parameters of a plan.
            kind = type("PlannedCompiled", (Planned, stack.running), {"backend": staticmethod(backend)})
            fake = FakeTensorMode(allow_non_fake_inputs=True)
            running, _ = made(kind, fake, stack, workload, size, contract)
            with fake:
                placed = running.placed(fake, batch)
                # The second step meets the optimizer's state, which the first one makes.
                for _ in range(2):
                    handle = running.step(placed)
                    del handle
    except Exception as error:
        print(f"what the compiler leaves behind is not planned: {error}", file=sys.stderr)
        return {}
    forget_peak()
    return {"planned_compiler": max(resident() - before, 0)}
