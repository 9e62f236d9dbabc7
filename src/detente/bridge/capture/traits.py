"""What eager can ask of a batch's tensor beside its shape, its dtype and its values.

How it lies in memory (``stride()``, ``is_contiguous()``, ``view`` that raises), whether it is a conjugate or a negative
that torch has only noted, whether it is a parameter, which plain values somebody set on it (``nn.Buffer`` is such a
tensor). All of it is part of a layout's key, and a capture is given tensors that have it. What a program cannot have (a
class with code of its own, an attribute that holds a tensor) is refused.

This runs for every tensor of every step: what is ordinary costs some questions to C, and no object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.live.guard import SeenParameter, SeenTensor
from detente.bridge.private import neg_view
from detente.bridge.refusal import Reason

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_WATCHED = (SeenParameter, SeenTensor)  # those of a module that a step trains
_NOTHING = object()
_TENSOR, _STRIDED = torch.Tensor, torch.strided
# Of which there are no arrays: torch's own bits and quantized numbers, and a complex number of two float16.
_NO_ARRAYS = frozenset(
    getattr(torch, name)
    for name in (
        *("complex32", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float4_e2m1fn_x2"),
        *("qint8", "qint32", "quint8", "quint4x2", "quint2x4"),
    )
    if hasattr(torch, name)
)
# Set by torch.compile and by the bridge itself, for themselves.
_MARKS = ("_dynamo", "_detente")


@dataclass(frozen=True)
class Odd:
    """A tensor that is no ordinary one. ``own``: (attribute, value) of those that somebody set on it."""

    conj: bool
    neg: bool
    parameter: bool
    own: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable; ``1``, ``1.0`` and ``True`` are different values."""
        own = tuple((name, type(value).__name__, repr(value)) for name, value in self.own)
        return self.conj, self.neg, self.parameter, own

    def put_on(self, tensor: Any) -> None:
        """What an object of Python's can be given; a value that is there already is not set again."""
        if not isinstance(tensor, torch.Tensor):
            return
        if self.parameter and not isinstance(tensor, nn.Parameter):
            tensor._is_param = True
        for name, value in self.own:
            if tensor.__dict__.get(name, _NOTHING) is not value:
                setattr(tensor, name, value)


def odd(tensor: torch.Tensor) -> Odd | None:
    """None for an ordinary tensor."""
    conj, neg, kind = tensor.is_conj(), tensor.is_neg(), type(tensor)
    if kind is _TENSOR and not (conj or neg or tensor.__dict__):
        return None
    own = tuple(item for item in sorted(_set_on(tensor).items()))
    parameter = isinstance(tensor, nn.Parameter)
    return Odd(conj, neg, parameter, own) if conj or neg or parameter or own else None


def _set_on(tensor: torch.Tensor) -> dict[str, Any]:
    if _is_ours(type(tensor)):
        return {}
    return {
        name: value for name, value in tensor.__dict__.items() if not name.startswith((*_MARKS, "_is_param"))
    }


def _is_ours(kind: type) -> bool:
    """What the bridge made (a loss that nobody has read yet): its attributes are its own."""
    return kind not in _WATCHED and kind.__module__.startswith("detente.bridge.")


def laid(values: torch.Tensor, strides: tuple[int, ...], odd: Odd | None) -> torch.Tensor:
    """The same values as a tensor of these traits has them in memory: a loss may ask (``view``, ``as_strided``)."""
    conj, neg = (odd.conj, odd.neg) if odd is not None else (False, False)
    values = values.conj().resolve_conj() if conj else values
    found = _in_strides(-values if neg else values, strides)
    found = found.conj() if conj else found
    return neg_view(found) if neg else found


def _in_strides(values: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if values.stride() == strides:
        return values
    made = torch.empty_strided(values.shape, strides, dtype=values.dtype)
    # of an expanded axis one row
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    made[once].copy_(values[once])
    return made


def untakeable(tensor: torch.Tensor, where: str) -> Reason | None:
    """Why no program can be given this tensor, if so."""
    kind = type(tensor)
    strange = kind is not _TENSOR or tensor.layout is not _STRIDED or tensor.dtype in _NO_ARRAYS
    if not (strange or tensor.is_nested or tensor.is_meta or tensor.requires_grad or tensor.__dict__):
        return None
    what = hint = ""
    if kind not in (torch.Tensor, nn.Parameter) and kind not in _WATCHED and not _is_ours(kind):
        # Asked first: such a class answers the other questions by code of its own.
        what = f"a {kind.__module__}.{kind.__qualname__}, a class of tensors with code of its own"
        hint = f"{where}.as_subclass(torch.Tensor), or its tensors apart, is what a program can have"
        if kind.__module__.startswith("torch.nested"):
            what, hint = "a nested tensor", _PADDED
    elif tensor.is_nested:
        what, hint = "a nested tensor", _PADDED
    elif tensor.layout != torch.strided:
        what = f"a {tensor.layout} tensor"
        hint = "to_dense() before the step, or hand over its indices and values"
    elif tensor.dtype in _NO_ARRAYS and tensor.is_quantized:
        what = f"a quantized tensor ({tensor.dtype})"
        hint = "dequantize() before the step, or hand over int_repr() beside its scale and zero point"
    elif tensor.dtype in _NO_ARRAYS:
        what, hint = (
            f"of {tensor.dtype}, which no array has",
            "view() it as integers, or convert it, before the step",
        )
    elif tensor.is_meta:
        what, hint = "on the meta device: it has no values", "give it values before the step"
    elif tensor.requires_grad and not tensor.is_leaf:
        return Reason(
            "batch",
            f"{where} was computed with a gradient, and eager would take that further; a step does not",
            None,
            f"compute it in the loss, or detach() it before the step ({where}.detach().requires_grad_() where the loss "
            "differentiates by it)",
        )
    elif kind is not torch.Tensor or tensor.__dict__:
        for name, value in _set_on(tensor).items():
            if not isinstance(value, PLAIN):
                return Reason(
                    "batch",
                    f"{where} has an attribute {name} (a {type(value).__qualname__}), which no program would see",
                    None,
                    f"hand it over beside the tensor, ({where}, {where}.{name}), or del {where}.{name}",
                )
    return Reason("batch", f"{where} is {what}; the bridge takes dense tensors", None, hint) if what else None


_PADDED = "torch.nested.to_padded_tensor(x, 0.0) before the step, and the lengths beside it"
