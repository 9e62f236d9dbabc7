"""What a loss asks of the memory that a batch's tensors lie in, while a program is captured.

A program is given values. Shape, strides and the bits of a conjugate are the layout's (``traits.py``); where in its
memory a tensor begins is another matter, as a loop that goes through a data set by slices has another answer in every
step. So a program that asks (``storage_offset()``, ``as_strided`` with an offset) is for tensors that begin at 0, and
no others. What only a tensor of this process can answer (its address, how often it was written, what it is a view of)
is refused.

How it can fail: code in C that asks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from detente.bridge.capture.where import here
from detente.bridge.graph import Where
from detente.bridge.refusal import refuse

_STRIDED = ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter")
_OF_THE_OBJECT = frozenset(
    {
        "_version", "_base", "_is_view", "data_ptr", "is_set_to", "untyped_storage", "storage", "_typed_storage",
        "is_shared", "is_pinned",
    }
)  # fmt: skip
_CLONE = "clone() the tensor before the step: it begins at 0 then"


class Memory(TorchFunctionMode):
    """Around the loss. ``begins``: the line that asks where a tensor of the batch begins, or None."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.begins: Where | None = None
        self._memory = {_memory(tensor) for tensor in tensors}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name not in _OF_THE_OBJECT and not _asks_where(name, args, kwargs):
            return func(*args, **kwargs)
        if (
            not args
            or not isinstance(args[0], torch.Tensor)
            or _is_the_captures()
            or _memory(args[0]) not in self._memory
        ):
            return func(*args, **kwargs)
        if name in _OF_THE_OBJECT:
            raise refuse(
                "batch",
                f"the loss asks a tensor of the batch for {name}, which no program knows of the next batch",
                here(),
                "ask before the step, and hand the answer over in the batch",
            )
        self.begins = self.begins or here()
        return func(*args, **kwargs)


def _asks_where(name: str, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether the answer is another one where the tensor begins elsewhere."""
    given = len(args) > 3 + ("scatter" in name) or kwargs.get("storage_offset") is not None
    return name == "storage_offset" or (name in _STRIDED and given)


def _is_the_captures() -> bool:
    """Whether the question is the bridge's own, which patches what the loss calls, or that of torch.fx, which notes
    where a tensor lies when it sees it first."""
    frame: Any = sys._getframe(2)
    while frame is not None and _module(frame).startswith("torch."):
        if _module(frame).startswith("torch.fx."):
            return True
        frame = frame.f_back
    return frame is not None and _module(frame).startswith("detente.bridge.")


def _module(frame: Any) -> str:
    return frame.f_globals.get("__name__", "")


def _memory(tensor: torch.Tensor) -> int | None:
    """None of one that stands for a row, inside of a ``vmap``."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        return None


def from_0(begins: Where | None, paths: Sequence[str], offsets: Sequence[int], parts: int = 1) -> None:
    """Raises Refused where a program asks where its tensors begin, and one of this batch does not begin at 0."""
    if begins is None:
        return
    for path, offset in zip(paths, offsets, strict=True):
        if offset or parts > 1:
            at = f"begins at {offset}" if offset else "is cut into micro-batches"
            what = f"the loss asks where in its memory a tensor of the batch begins, and {path} {at}"
            raise refuse("batch", what, begins, _CLONE)
