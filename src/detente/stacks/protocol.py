"""What a stack must do. These docstrings are the contract; tests/conformance/stacks checks every stack against it.

A stack's file may be imported without its framework: only ``start`` imports it. Arrays that cross this border are
numpy, under canonical names: torch's ``state_dict`` names and layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from detente.records.arm import Arm
from detente.records.contract import Contract
from detente.workloads.workload import Size, Workload

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CompileCount:
    """Cumulative since ``start``. ``events`` counts everything that must not happen in a steady window: traces,
    compilations, graph captures. ``seconds`` is the time the framework itself says it spent compiling."""

    events: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Capture:
    """A program as the stack gives it away: its form (records/program.py), a name, the bytes, and its facts."""

    form: str
    name: str
    data: bytes
    facts: dict[str, float] = field(default_factory=dict)


class Running(Protocol):
    """A workload that has been built on a stack, ready to step."""

    def load(self, tensors: Arrays) -> None:
        """Set every parameter and buffer from canonical arrays and reset the optimizer state to zero.
        Must not compile or re-trace anything when called again. Raises KeyError on a missing name."""
        ...

    def place(self, batch: Arrays) -> Any:
        """Move one batch to the device and wait until it is there."""
        ...

    def step(self, batch: Any) -> Any:
        """Start one run of the contract's region on a placed batch; return a handle of *all* its outputs (loss,
        outputs, gradients, new state). May return before the work is done, and may queue it; each run is one by
        itself. Never reads anything back."""
        ...

    def synchronise(self, *handles: Any) -> None:
        """Wait until everything that ``step`` started is done: every output of every handle, and the new state.
        Mandatory; the timer calls it without asking what kind of device this is. A handle of a train step may
        hold outputs only: the state that a later step took over (donated) is waited for where it is now."""
        ...

    def loss(self, handle: Any) -> float:
        """The loss of a handle, on the host. Waits."""
        ...

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        """What the region returned besides the loss, on the host, floats widened to at least float32:
        ``forward``: the workload's outputs by name. ``gradient``: the gradients, parameters by canonical name and
        batch entries as ``batch:NAME``. ``train-step``: nothing."""
        ...

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        """The gradient of the loss at the current weights, named as in ``outputs``, without an update. For the
        proof of a train step; may compile a program of its own and must leave parameters, buffers and optimizer
        state as they were."""
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """Every parameter and floating-point buffer by canonical name, on the host, in its own dtype or wider."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """Everything that the next step starts from, on the host: ``tensors``, and the optimizer's own under torch's
        names: ``exp_avg:PARAMETER``, ``exp_avg_sq:PARAMETER``, ``momentum_buffer:PARAMETER``, and ``step``, the number
        of updates so far (0-d, where the optimizer counts). Waits for what is under way. Handed out in the middle of
        the timed window and proved there; it must not compile anything when it is called again. Views of what the next
        step overwrites are welcome: whoever asks copies what they keep, and lets go of the rest before the next
        step."""
        ...

    def parameter_names(self) -> frozenset[str]:
        """Which names of ``tensors`` are trainable parameters (the rest are buffers). Tied names appear once."""
        ...

    def compiled(self) -> CompileCount:
        """Compilations so far."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes by label: ``live_tensors`` (the allocator's peak), ``compiler_estimate`` (argument + output + temp
        - alias of the step's executable). A label that the stack does not know is absent."""
        ...

    def devices(self, handle: Any) -> tuple[str, ...]:
        """The platform (``cpu``, ``cuda``, ...) of every output of a handle, without repeats."""
        ...

    def practice(self) -> str:
        """One line for the reader: which documented practice of the framework this row follows (the optimizer's
        implementation, the attention kernel, what is jitted and donated). Shown, never judged: what a rule reads, the
        harness observes itself."""
        ...

    def programs(self) -> tuple[Capture, ...]:
        """The captured program or programs of the step. Empty for a stack that has none (eager)."""
        ...


class Stack(Protocol):
    """How a workload is run. One instance per worker process."""

    def start(self, device: str, precision: str, threads: int) -> str:
        """Import the framework, choose device and precision, set the thread count; return the platform that is
        really in use (``cpu``, ``cuda``, ``rocm``, ``tpu``). Raises Unavailable with a reason when the device or
        the precision is not there."""
        ...

    def versions(self) -> dict[str, str]:
        """Distribution name -> version of everything that this stack computes with."""
        ...

    def threads(self) -> dict[str, int]:
        """Thread counts read back from the framework, by the framework's own name for them."""
        ...

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """``a @ b`` on the stack's device at the contract's precision, through the path that the workload's own
        products take. The effective-precision probe and the peak-rate probe use it."""
        ...

    def product_seconds(self, m: int, k: int, n: int, repeats: int) -> float:
        """Seconds of one ``(m, k) @ (k, n)`` at the contract's precision, operands and result resident:
        the best of ``repeats`` synchronised calls after one that is not counted."""
        ...

    def copy_seconds(self, elements: int, repeats: int) -> float:
        """Seconds to read and write ``elements`` float32 on the device, timed as in ``product_seconds``."""
        ...

    def plan(self, workload: Workload, size: Size, contract: Contract, batch: Arrays) -> dict[str, int]:
        """What the region would hold, in bytes by label, before anything of it exists: ``planned_parameters``,
        ``planned_gradients``, ``planned_state``, ``planned_activations`` (of a compiled program the last and the
        gradients together, ``planned_temporary``) and ``planned_peak``. Empty where nothing plans."""
        ...

    def build(self, workload: Workload, size: Size, contract: Contract) -> Running:
        """Create module, optimizer and step. Weights are whatever the framework initialises; ``load`` follows.
        Raises Unavailable when the workload has no definition for this stack."""
        ...


class Armed(Protocol):
    """What a stack offers besides, when it can be run under arms. One that does not is skipped under any."""

    def build_under(self, arm: Arm, workload: Workload, size: Size, contract: Contract) -> Running:
        """``build`` with the arm's factors set (stacks/factors.py). Raises Unavailable, with the reason, for what this
        stack cannot be built under."""
        ...


def build(stack: Any, arm: Arm, workload: Workload, size: Size, contract: Contract) -> Running:
    """A workload on a stack, under its arm where it has one."""
    if not arm:
        return stack.build(workload, size, contract)
    if not hasattr(stack, "build_under"):
        raise Unavailable(f"{type(stack).__name__} is built under no arm")
    return stack.build_under(arm, workload, size, contract)


class Unavailable(Exception):
    """A cell that this stack cannot run here; the text is the reason that the row shows. It is *skipped*."""
