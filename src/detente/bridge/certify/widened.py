"""Eager PyTorch in float64 even where a module's code names float32 (``x.float()``, ``dtype=torch.float32``).

The certificate's reference is the step in float64. ``module.to(torch.float64)`` alone gives it for most modules; one
that casts to float32 by name then multiplies float32 with float64, which torch refuses. Inside ``with widened():``
every narrower floating dtype that is named reads as float64, a number without one is made in float64, and a float32
tensor that was there before (an attribute that is no buffer) is read in float64.

It works below autograd and below torch's composites, so ``softmax(..., dtype=torch.float32)`` is one case among
others. Random numbers are drawn as they are outside, and widened afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from detente.bridge.private import HigherOrderOperator, TorchDispatchMode, pytree

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class ReadsBits(NotImplementedError):
    """The bits of a float are looked at: a wider float has others."""


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: Any = None,
    out_dtype: Any = None,
) -> torch.Tensor:
    """``aten._grouped_mm``, which torch has for float32 and narrower alone: a product per group, groups ending at
    ``offs`` along the rows of ``a``, the columns of ``b``, or (two matrices) along what is summed over."""
    if offs is None:
        return torch.bmm(a, b)
    ends = offs.tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.ndim == 2 and b.ndim == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans])
    out = a.new_zeros(a.shape[-2], b.shape[-1])
    for number, span in enumerate(spans):
        if a.ndim == 2:
            out[span] = a[span] @ b[number]
        else:
            out[:, span] = a[number] @ b[:, span]
    return out


# operators that torch does not have in float64
_EXACT: dict[Any, Callable[..., Any]] = {torch.ops.aten._grouped_mm.default: _grouped_mm}


class Widened(TorchDispatchMode):
    """The mode itself. ``plain`` is the default dtype outside."""

    supports_higher_order_operators = True

    def __init__(self, plain: torch.dtype) -> None:
        super().__init__()
        self.plain = plain

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        if func is torch.ops.aten.view.dtype:
            if args[0].is_floating_point() or args[1].is_floating_point:
                raise ReadsBits(f"{func} of {args[0].dtype} as {args[1]}")
            return func(*args, **kwargs)
        fixed = any(argument.alias_info is not None for argument in func._schema.arguments)
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.set_default_dtype(self.plain)
            try:
                drawn = func(*args, **kwargs)
            finally:
                torch.set_default_dtype(torch.float64)
            return drawn if fixed else pytree.tree_map(_value, drawn)
        args, kwargs = pytree.tree_map(_dtype, (args, kwargs))
        # a view must stay one, and what is written must be the tensor itself
        if fixed:
            return func(*args, **kwargs)
        args, kwargs = pytree.tree_map(_value, (args, kwargs))
        exact: Any = _EXACT.get(func, func)
        return pytree.tree_map(_value, exact(*args, **kwargs))


def _dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def _value(value: Any) -> Any:
    return value.to(torch.float64) if isinstance(value, torch.Tensor) and value.dtype in NARROW else value


@contextmanager
def widened() -> Iterator[None]:
    """Everything inside runs in float64. Raises ReadsBits where the bits of a float are read."""
    plain = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened(plain):
            yield
    finally:
        torch.set_default_dtype(plain)
