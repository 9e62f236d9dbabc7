"""Tensors that forward puts into the module: a buffer that is bound anew is written, anything else must not matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.live.places import has
from detente.bridge.live.sources import Sources
from detente.bridge.refusal import Reason, refuse


@dataclass(frozen=True)
class Left:
    """A tensor that a trace left under ``key`` of a part's own table, or in another place of Python's. ``fresh``: where
    nothing was, as a cache is filled. A number that was read of a tensor (``item()``) has no ``shape``."""

    table: Any
    key: Any
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    name: str
    fresh: bool = False
    mark: int = 0  # the id of what was left, for as long as that is there

    @property
    def reason(self) -> Reason:
        what = "a number of a tensor's" if self.shape is None else "a tensor"
        return Reason(
            "held-tensor",
            f"forward keeps {what} in {self.name}, and with it there the next step is another program",
        )


class Held:
    """What a module holds when its forward begins."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = [
            (part._buffers, key, tensor, f"{path}.{key}" if path else key)
            for path, part in model.named_modules()
            for key, tensor in part._buffers.items()
        ]
        self.parameters = [
            (part._parameters, dict(part._parameters), path) for path, part in model.named_modules()
        ]
        self.trained = {name: (tensor, tensor.requires_grad) for name, tensor in model.named_parameters()}
        self.own = [(vars(part), dict(vars(part)), path) for path, part in model.named_modules()]

    def written_in_place(self) -> tuple[Left, ...]:
        """Called when the forward is over: what was bound anew is written into the buffer that was there, which is what
        the next step reads. Returns the tensors that were left in attributes."""
        for table, before, path in self.parameters:
            for key in table.keys() | before.keys():
                if table.get(key) is not before.get(key):
                    name = f"{path}.{key}" if path else key
                    raise refuse("parameter", f"forward puts another parameter in the place of {name}")
        for name, (tensor, trained) in self.trained.items():
            # (what was written with a gradient is no leaf any more, and is refused by its line)
            if tensor.is_leaf and tensor.requires_grad != trained:
                raise refuse(
                    "parameter",
                    f"forward sets {name}.requires_grad to {tensor.requires_grad}",
                    hint="set it between two steps, where the step takes it over",
                )
        for table, key, before, name in self.buffers:
            now = table.get(key)
            if now is before:
                continue
            if before is None or not isinstance(now, torch.Tensor):
                raise refuse(
                    "held-tensor", f"forward sets buffer {name}, which was {_said(before)}, to {_said(now)}"
                )
            if now.shape != before.shape or now.dtype != before.dtype:
                raise refuse(
                    "held-tensor", f"forward sets buffer {name} from {_said(before)} to {_said(now)}"
                )
            before.copy_(now.detach())
            table[key] = before
        left = []
        for table, before, path in self.own:
            for key, now in list(table.items()):
                if not isinstance(now, torch.Tensor) or now is before.get(key):
                    continue
                name = f"{path}.{key}" if path else key
                if key in before:
                    table[key] = before[key]
                else:
                    del table[key]
                left.append(Left(table, key, tuple(now.shape), now.dtype, name))
        return tuple(left)


def left_in_python(before: Sources) -> tuple[Left, ...]:
    """Tensors, and numbers of theirs, that the code left in dictionaries, closures and objects."""
    found = []
    for table, key, then, now, name in before.left():
        tensor = isinstance(now, torch.Tensor)
        shape, dtype = (tuple(now.shape), now.dtype) if tensor else (None, None)
        found.append(Left(table, key, shape, dtype, name, then is None, id(now)))
    return tuple(found)


@contextmanager
def standing_in(left: Sequence[Left]) -> Iterator[set[int]]:
    """Zeros where a trace left tensors, a number that no code holds where it left numbers, and what was there before at
    the end. Yields the ids of what stands in."""
    before = [
        (one.table, one.key, one.table[one.key] if has(one.table, one.key) else _NOTHING) for one in left
    ]
    for one in left:
        one.table[one.key] = _NUMBER if one.shape is None else torch.zeros(one.shape, dtype=one.dtype)
    try:
        yield {id(one.table[one.key]) for one in left}
    finally:
        for table, key, then in before:
            if then is _NOTHING:
                if has(table, key):
                    del table[key]
            else:
                table[key] = then


_NOTHING, _NUMBER = object(), 0.8372915604


def _said(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
