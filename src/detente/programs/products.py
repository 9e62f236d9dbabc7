"""Floating-point operations of products and convolutions: multiply and add counted apart, nothing else counted."""

from __future__ import annotations

import math

from detente.programs.module import Computation, Convolution, Dot, Instruction, Spatial, Work

PRODUCTS = frozenset({"dot", "convolution"})


def is_product(one: Instruction) -> bool:
    """Whether it is counted here. A library call that hides a product is not, unless it says what it multiplies;
    ``count`` lists custom calls."""
    return one.opcode in PRODUCTS or isinstance(one.detail, Work)


def product_flops(one: Instruction, home: Computation) -> int:
    """``2 m n k`` of a dot: twice the result's elements times the contracted extent. For a convolution twice the
    pairs of a real input element and a real kernel element that meet: padding and the holes of a dilation are not
    counted. So a strided convolution and both of its gradients, which are written with dilations, count the same
    (they are one bilinear form), as in XLA's own cost analysis."""
    if isinstance(one.detail, Dot):
        left = home.instructions[one.operands[0]].shape
        return 2 * one.shape.elements * math.prod(left.dims[d] for d in one.detail.contracting)
    if isinstance(one.detail, Work):
        return one.detail.flops
    if isinstance(one.detail, Convolution):
        c = one.detail
        return 2 * c.batch * c.out_features * c.in_features * math.prod(meetings(s) for s in c.spatial)
    return 0


def meetings(s: Spatial) -> int:
    """How many (output position, window position) pairs of one spatial dimension fall on an input element.

    >>> meetings(Spatial(size=3, input=8, output=8, low=1))   # 8 * 3 less one at each edge
    22
    """
    last = (s.input - 1) * s.base_dilation
    total = 0
    for tap in range(s.size):
        offset = tap * s.window_dilation - s.low
        for out in range(s.output):
            at = out * s.stride + offset
            total += 0 <= at <= last and at % s.base_dilation == 0
    return total


def operand_dtypes(one: Instruction, home: Computation) -> str:
    """``f32`` where both operands agree, else ``bf16xf32``. Of a Work without two operands that of its
    result."""
    if isinstance(one.detail, Work) and len(one.operands) < 2:
        return one.shape.dtype
    left, right = (home.instructions[i].shape.dtype for i in one.operands[:2])
    return left if left == right else f"{left}x{right}"
