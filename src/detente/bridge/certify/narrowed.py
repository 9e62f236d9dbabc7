"""Eager PyTorch with products of TF32, on a processor that has none: what torch's own error is where a user asked for
``matmul="tensorfloat32"`` and the step runs on an accelerator that has them.

A tensor core keeps ten bits of each operand's fraction and adds the products up in float32 (NVIDIA, "A100 Tensor Core
GPU Architecture", 2020). So the operands of every product, convolution and their gradients are rounded, and nothing
else is: torch's ``high`` does the same on such a device.

How it can fail: a kernel that multiplies inside of a larger operator is not seen (oneDNN's LSTM on a CPU), torch's own
error is then that of float32, and a certificate refuses what is fair; it never passes what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from detente.bridge.private import TorchDispatchMode

# The distance from one to its neighbour in TF32: ten bits of fraction.
EPS = 2.0**-10
_DROPPED = 13  # of float32's 23 bits


def rounded(value: Any) -> Any:
    """A float32 tensor on TF32's grid, to nearest, ties away from zero; anything else as it is.

    >>> rounded(torch.tensor([1.0, 1 + 2**-11, 1 + 2**-12, float("inf")])).tolist()
    [1.0, 1.0009765625, 1.0, inf]
    """
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.layout != torch.strided:
        return value
    half, kept = 1 << (_DROPPED - 1), ~((1 << _DROPPED) - 1)
    bits = value.contiguous().view(torch.int32)
    # A NaN would be carried into infinity.
    return torch.where(value.isfinite(), ((bits + half) & kept).view(torch.float32), value)


class _Narrowed(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        products = _PRODUCTS.get(func)
        kwargs = kwargs or {}
        return func(*args, **kwargs) if products is None else products(func, args, kwargs)


def _from(first: int, last: int) -> Callable[..., Any]:
    """The product of the arguments from ``first`` to before ``last``; others are added to it, or say how."""

    def product(func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args[:first], *map(rounded, args[first:last]), *args[last:], **kwargs)

    return product


def _convolved_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """The gradients of a convolution; a bias's is a sum and no product."""
    found = func(*map(rounded, args[:3]), *args[3:], **kwargs)
    *rest, mask = args
    alone = func(*rest, [False, False, mask[2]], **kwargs) if mask[2] else (None, None, None)
    return found[0], found[1], alone[2]


_aten = torch.ops.aten
_PRODUCTS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default, _aten.mv.default, _aten.dot.default), _from(0, 2)),
    **dict.fromkeys(
        (_aten.addmm.default, _aten.baddbmm.default, _aten.addbmm.default, _aten.addmv.default), _from(1, 3)
    ),
    _aten._grouped_mm.default: _from(0, 2),
    _aten.convolution.default: _from(0, 2),
    _aten.convolution_backward.default: _convolved_backward,
}


@contextmanager
def narrowed() -> Iterator[None]:
    """Inside, torch multiplies in TF32; attention by its mathematical form, whose products are seen."""
    with sdpa_kernel([SDPBackend.MATH]), _Narrowed():
        yield
