"""Eager PyTorch in float64 even where a module's code names float32 (``x.float()``, ``dtype=torch.float32``).

The certificate's reference is the step in float64. ``module.to(torch.float64)`` alone gives it for most modules; one
that casts to float32 by name then multiplies float32 with float64, which torch refuses. Inside ``with widened():``
every narrower floating dtype that is named reads as float64, what is made without one (``torch.zeros(3)``,
``torch.tensor(0.5)``, ``torch.arange(3) / 7``) is made in float64, and a float32 tensor that was there before (an
attribute that is no buffer) is read in float64.

It works below autograd and below torch's composites, so ``softmax(..., dtype=torch.float32)`` is one case among
others. Random numbers are drawn as they are outside, and widened afterwards. torch's default dtype stays what it is:
it is one for all threads, and another one may be making a batch. Only while an operator of a higher order runs
(``torch.cond``), inside of which no mode is asked, it is float64.

How it can fail: what reads the default dtype inside is told the one of outside, and what it does with it in Python
alone (a tolerance, ``finfo``) is that of the narrower one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from detente.bridge.private import HigherOrderOperator, TorchDispatchMode, pytree

NARROW = (torch.float32, torch.bfloat16, torch.float16)
# What torch makes where nobody names a dtype -> what is made here.
_UNNAMED = {**dict.fromkeys(NARROW, torch.float64), torch.complex64: torch.complex128}


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
    """The mode itself."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            with _default_of_float64():
                return func(*args, **kwargs)
        if func is torch.ops.aten.view.dtype:
            if args[0].is_floating_point() or args[1].is_floating_point:
                raise ReadsBits(f"{func} of {args[0].dtype} as {args[1]}")
            return func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default:
            return _lifted(func(*args, **kwargs))
        fixed = any(argument.alias_info is not None for argument in func._schema.arguments)
        if torch.Tag.nondeterministic_seeded in func.tags:
            drawn = func(*args, **kwargs)
            return drawn if fixed else pytree.tree_map(_value, drawn)
        args, kwargs = pytree.tree_map(_dtype, (args, kwargs))
        # a view must stay one, and what is written must be the tensor itself
        if fixed:
            return func(*args, **kwargs)
        args, kwargs = pytree.tree_map(_value, (args, kwargs))
        exact: Any = _EXACT.get(func, func)
        found = exact(*args, **kwargs)
        if isinstance(found, torch.Tensor) and found.dtype in _UNNAMED:
            found = _of_default_dtype(func, args, kwargs, found)
        return pytree.tree_map(_value, found)


def _of_default_dtype(func: Any, args: Any, kwargs: Any, found: torch.Tensor) -> Any:
    """What torch gave in its default dtype, made again in float64: of nothing (``zeros``), or of integers, which
    become floats only on the way (``exp`` of an ``arange``)."""
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if any(tensor.is_floating_point() or tensor.is_complex() for tensor in given):
        return found
    if not given:
        named = any(argument.name == "dtype" for argument in func._schema.arguments)
        if not named or kwargs.get("dtype") is not None:
            return found
        return func(*args, **kwargs | {"dtype": _UNNAMED[found.dtype]})
    try:
        return func(*pytree.tree_map(_float, args), **pytree.tree_map(_float, kwargs))
    except (RuntimeError, IndexError, NotImplementedError):  # it wants integers
        return found


def _lifted(made: torch.Tensor) -> torch.Tensor:
    """A tensor that was just made of Python's numbers, in the default dtype; not one over an array of numpy's, which
    shows memory that is not torch's own."""
    wide = _UNNAMED.get(made.dtype)
    return made if wide is None or not made.untyped_storage().resizable() else made.to(wide)


def _dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def _value(value: Any) -> Any:
    return value.to(torch.float64) if isinstance(value, torch.Tensor) and value.dtype in NARROW else value


def _float(value: Any) -> Any:
    """An integer or a truth value as a float that holds it exactly (up to 2**53)."""
    return value.to(torch.float64) if isinstance(value, torch.Tensor) else value


@contextmanager
def _default_of_float64() -> Iterator[None]:
    plain = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(plain)


@contextmanager
def widened() -> Iterator[None]:
    """Everything inside runs in float64. Raises ReadsBits where the bits of a float are read."""
    with Widened():
        yield
