"""``x.data``, and moves that move nothing: torch.export stumbles over both.

While a program is captured ``x.data`` is ``x.detach()``, and ``x.data = y`` writes ``y`` under no_grad, or nothing
where ``y`` is the same memory. ``module.to(...)`` that changes no tensor changes nothing. What torch.export itself
makes of a parameter by ``.data`` is marked: it takes a gradient, and an alias that the user detached does not.

How it can fail: ``x.data = y`` lets other names of the old memory keep their values in eager torch, and here they see
the new ones; the certificate sees that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.markers import capturing
from detente.bridge.capture.where import here
from detente.bridge.private import FakeTensor
from detente.bridge.refusal import refuse

_TAKES = "_detente_takes_gradient"


def one_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two show the same memory, or parts of it; those of a trace, which have none, too."""
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one_memory(one, other)
        and one.storage_offset() == other.storage_offset()
        and (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    )


def takes_gradient(constant: torch.Tensor) -> bool:
    """Whether a constant of torch.export's takes a gradient in eager. Of a parameter that stands in no table of the
    module's torch.export keeps ``.data``, which says no."""
    return constant.requires_grad or _TAKES in constant.__dict__


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if _same_memory(tensor, value):
        return
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        said = [f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in (tensor, value)]
        what = f"forward sets the .data of a tensor from {said[0]} to {said[1]}"
        raise refuse("parameter", what, here(), "change its dtype and shape before the step")
    with torch.no_grad():
        tensor.detach().copy_(value.detach())


@contextmanager
def keep_data() -> Iterator[None]:
    """For the time of a capture."""
    kind: Any = torch.Tensor
    data = kind.data  # in a class, the descriptor itself
    plain_apply: Any = nn.Module._apply

    def get_data(self: torch.Tensor) -> Any:
        if isinstance(self, FakeTensor):
            return self.detach()
        found = data.__get__(self)
        if self.requires_grad and capturing() is None:  # torch.export asks, and no code of the user's
            found.__dict__[_TAKES] = True
        return found

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        if isinstance(self, FakeTensor) and isinstance(value, FakeTensor):
            _set_data(self, value)
        else:
            data.__set__(self, value)

    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        held = [*self.parameters(recurse), *self.buffers(recurse)]
        if held and all(isinstance(t, FakeTensor) for t in held):
            with torch.no_grad():
                if all(_same_memory(t, fn(t)) for t in held):
                    return self
            what = f"forward changes the dtype or the device of the tensors of a {type(self).__name__}"
            raise refuse("parameter", what, here(), "change them before the step, or cast inside of forward")
        return plain_apply(self, fn, recurse)

    kind.data = property(get_data, set_data)
    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        del kind.data
        nn.Module._apply = plain_apply  # type: ignore[method-assign]
