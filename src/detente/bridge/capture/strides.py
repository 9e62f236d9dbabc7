"""``as_strided`` looks at memory, and the neutral graph has none: the tensor is put in the order of its memory first.

A tensor whose elements fill a piece of memory without gaps (a transposed one, a view of one) is, with its dimensions
sorted by stride, contiguous there; ``as_strided`` then reads places that are known. torch's Longformer makes its
overlapping windows this way from queries that lie transposed in memory. Anything else is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node as FxNode

STRIDED = ("aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default")


def memory_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions from the largest stride to the smallest, or None where that order leaves gaps or overlaps."""
    order = sorted(range(value.ndim), key=lambda d: (-value.stride(d), value.shape[d] != 1))
    expected = 1
    for d in reversed(order):
        if value.shape[d] != 1 and value.stride(d) != expected:
            return None
        expected *= value.shape[d]
    return tuple(order)


def places(node: FxNode) -> tuple[list[int], list[int], int] | None:
    """Size, stride and offset of an ``as_strided`` from the first element of the tensor that it looks at; None where
    it looks beyond that tensor."""
    first = 2 if "scatter" in str(node.target) else 1
    size, stride, offset = (
        node.args[first + i] if len(node.args) > first + i else node.kwargs.get(name)
        for i, name in enumerate(("size", "stride", "storage_offset"))
    )
    source: Any = node.args[0]
    value: torch.Tensor = source.meta["val"]
    start = 0 if offset is None else int(offset) - int(value.storage_offset())
    reach = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if start < 0 or (all(size) and reach >= value.numel()):
        return None
    return list(size), list(stride), start
