"""Floating-point operations of products and convolutions: multiply and add counted apart, nothing else counted."""

from __future__ import annotations

import math
from collections.abc import Collection

from detente.programs.meetings import meetings
from detente.programs.module import Computation, Convolution, Dot, Instruction, Shape, Work

PRODUCTS = frozenset({"dot", "ragged-dot", "convolution"})


def is_product(one: Instruction) -> bool:
    """Whether it is counted here. A library call that hides a product is not, unless it says what it multiplies;
    ``count`` lists custom calls."""
    return one.opcode in PRODUCTS or isinstance(one.detail, Work)


def product_flops(one: Instruction, home: Computation) -> int:
    """``2 m n k`` of a dot: twice the result's elements times the contracted extent. For a convolution twice the
    pairs of a real input element and a real kernel element that meet: padding and the holes of a dilation are not
    counted. So a strided convolution and both of its gradients, which are written with dilations, count the same
    (they are one bilinear form), as in XLA's own cost analysis.

    Raises ProgramError for a convolution whose strides or dilations are none."""
    if isinstance(one.detail, Dot):
        left = home.instructions[one.operands[0]].shape
        return 2 * one.shape.elements * math.prod(left.dims[d] for d in one.detail.contracting)
    if isinstance(one.detail, Work):
        return one.detail.flops
    if isinstance(one.detail, Convolution):
        c = one.detail
        return 2 * c.batch * c.out_features * c.in_features * math.prod(meetings(s) for s in c.spatial)
    return 0


def ragged_work(left: Shape, right: Shape, taken: Collection[int]) -> Work:
    """Of a product whose groups are told at run time (``ragged-dot``): every element of the left one meets one group of
    the right, whichever dimension is ragged. ``taken``: the dimensions of the right that are contracted, batched, or
    count the groups.

    >>> ragged_work(Shape("f32", (11, 5)), Shape("f32", (3, 5, 7)), (0, 1)).flops == 2 * 11 * 5 * 7
    True
    """
    free = (n for d, n in enumerate(right.dims) if d not in taken)
    return Work(2 * left.elements * math.prod(free))


def operand_dtypes(one: Instruction, home: Computation) -> str:
    """``f32`` where both operands agree, else ``bf16xf32``. Of a Work without two operands that of its
    result."""
    if isinstance(one.detail, Work) and len(one.operands) < 2:
        return one.shape.dtype
    left, right = (home.instructions[i].shape.dtype for i in one.operands[:2])
    return left if left == right else f"{left}x{right}"
