"""What the bridge says when it will not run something: every reason at once, each with the user's line.

A refusal is never a guess: the bridge refuses what it would otherwise compute differently from torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from detente.bridge.graph import Where


@dataclass(frozen=True)
class Reason:
    """One thing that stands in the way. ``code`` is a row of ``CODES``; ``what`` has the values; ``hint`` is
    what to do next (empty: the row's own hint)."""

    code: str
    what: str
    where: Where | None = None
    hint: str = ""

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"no such refusal code: {self.code!r}")

    def __str__(self) -> str:
        place = f"\n    at {self.where}" if self.where and self.where.file != "?" else ""
        return f"[{self.code}] {self.what}{place}\n    hint: {self.hint or CODES[self.code]}"


# code -> what to do next, when the reason itself knows nothing better
CODES: dict[str, str] = {
    "control-flow": "use torch.where or torch.cond, or move the test out of forward",
    "dynamic-shape": "the size of a result depends on a tensor's values: use torch.where or a mask of fixed size",
    "op": "register a lowering with detente.extend('the.op', function)",
    "dtype": "convert one of them: batch.float() (numpy's numbers are float64), or module.double()",
    "leaf-inplace": "write to a buffer or a copy; torch itself refuses a write to a leaf that needs a gradient",
    "no-grad-inplace": "write out of place under no_grad, or detach the tensor first",
    "batch": "give the same structure (keys, lengths, plain values) as example_batch, or compile a step with share=",
    "loss": "the loss function must return a 0-d floating tensor, or (loss, aux)",
    "meta": "pass weights='init' or weights= a safetensors checkpoint to detente.compile, or give it values first "
    "with module.to_empty(device='cpu')",
    "weights": "the checkpoint must have torch's state_dict names and shapes of this module",
    "non-finite": "look for the first bad value with step.eager(batch) under torch.autograd.detect_anomaly()",
    "optimizer": "keep what a step changes in optimizer.state, or take an optimizer that does (torch.optim's all do)",
    "module-changed": "call detente.compile again after changing the module",
    "threads": "call a step from one thread at a time: let the others hand their batches over through a queue",
    "fork": "start the process by spawn or forkserver (multiprocessing.get_context), or compile in it before anything "
    "of JAX's ran in its parent",
    "around": "write it inside of the loss function: what is around the call is no part of the captured step",
    "hook": "remove the hook, or apply it inside forward",
    "transform": "inside of a loss torch.autograd.grad, torch.vmap and torch.func's grad, vjp, jvp, jacrev, jacfwd and "
    "hessian run; everything that JAX has works on detente.functional",
    "function": "write the autograd.Function so that it reads only its arguments and ctx",
    "device": "move the module to the CPU before compiling; the step puts its arrays on the JAX device",
    "parameter": "a parameter that forward replaces or writes cannot be trained by the bridge",
    "held-tensor": "register it with register_buffer, with the shape and dtype that it has after the first step",
    "generator": "draw with torch inside forward (the step has its own random numbers), or draw into the batch",
    "form": "leave form= out, or take one that step.choice lists as possible",
    "checkpoint": "load it into a step of the same module and optimizer as the one that saved it",
    "profile": "`detente programs MODEL detente --parts` counts a program's parts without a clock",
    "export": "run torch.export.export(module, ..., strict=False) by itself to see torch's own message",
    "repeat": "what the step reads of the clock, of a file or of a device is one value in a program: hand it over in "
    "the batch, or keep it in a buffer",
    "certificate": "please report this with the module: the compiled step and torch disagree",
}


class Refused(RuntimeError):
    """The bridge will not run this program. ``reasons`` holds every cause that was found."""

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons = tuple(reasons)
        lines = "\n".join(f"  {reason}" for reason in self.reasons)
        count = len(self.reasons)
        super().__init__(
            f"the bridge refuses this program ({count} reason{'s' if count != 1 else ''}):\n{lines}"
        )


def refuse(code: str, what: str, where: Where | None = None, hint: str = "") -> Refused:
    """One refusal, ready to raise: ``raise refuse("op", "...", node.where)``."""
    return Refused([Reason(code, what, where, hint)])
