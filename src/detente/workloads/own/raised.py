"""A user's torch model in float64, *raised*: where it asks for a narrower floating point (``logits.float()``, a softmax
with ``dtype=torch.float32``), it gets float64.

Whether two models are the same function is asked in float64, and a model that rounds on its way could only be held to
1e-8 there: fair pairs would fail. Rounding is asked about at the precision that is timed, where nothing is raised.

How it can fail: a buffer that was rounded when it was made is a constant of the function, and the other side must have
the same. What narrows out of the mode's sight (a scripted part; what torch.compile captures of a checkpoint) stays
narrow: such a row fails its proof, which says that something computes in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward  # what loss.backward() ends in; torch 2.9 to 2.13
from torch.overrides import TorchFunctionMode

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_NARROWING = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
# What makes a tensor of torch's default dtype where none is named.
_MAKING = (
    torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.zeros, torch.ones, torch.full, torch.empty, torch.eye,
    torch.arange, torch.linspace, torch.logspace, torch.rand, torch.randn,
)  # fmt: skip


class Raised(TorchFunctionMode):
    """While it is active, every floating point that is named, or is torch's default, is at least float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _NARROWING:
            return args[0].double()
        named = {k: _WIDE.get(v, v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()}
        found = func(*[_WIDE.get(a, a) if isinstance(a, torch.dtype) else a for a in args], **named)
        if func in _MAKING and named.get("dtype") is None and found.dtype in _WIDE:
            # Not widened: a third in float32 would stay what it was.
            return func(*args, **{**named, "dtype": _WIDE[found.dtype]})
        return found


def backward(loss: torch.Tensor) -> None:
    """``loss.backward()`` of a raised loss: what a checkpoint computes again, and a backward of the user's own, is
    raised too. Not by ``loss.backward()``, which a mode is asked about: while it answers, it is not active."""
    with Raised():
        seed = (torch.ones_like(loss),)
        _engine_run_backward((loss,), seed, False, False, (), allow_unreachable=True, accumulate_grad=True)
