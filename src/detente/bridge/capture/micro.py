"""A batch as micro-batches, on the torch side: the same cut that the compiled step makes."""

from __future__ import annotations

from typing import Any

import torch

from detente.bridge.capture.batch import flatten
from detente.bridge.private import pytree
from detente.bridge.refusal import Reason, Refused


def split(batch: Any, parts: int) -> list[Any]:
    """``parts`` micro-batches: every tensor of the batch cut along its first axis, plain values as they are.

    Raises Refused (``batch``) naming each tensor that does not divide.
    """
    if parts == 1:
        return [batch]
    tensors, layout = flatten(batch)
    bad = [
        Reason(
            "batch",
            f"{path} has shape {list(tensor.shape)}, whose first axis does not divide into {parts} micro-batches",
            hint="choose accumulate= so that it divides every tensor of the batch",
        )
        for path, tensor in zip(layout.paths, tensors, strict=True)
        if tensor.ndim == 0 or tensor.shape[0] % parts
    ]
    if bad:
        raise Refused(bad)
    pieces = [tensor.detach().chunk(parts) for tensor in tensors]
    return [
        layout.build(
            [piece[part].requires_grad_(own) for piece, own in zip(pieces, layout.tracked, strict=True)]
        )
        for part in range(parts)
    ]


def joined(results: list[Any]) -> Any:
    """Aux of all micro-batches as one pytree: tensors with a new leading axis, plain values of the first."""

    def one(*leaves: Any) -> Any:
        return torch.stack(leaves) if isinstance(leaves[0], torch.Tensor) else leaves[0]

    return pytree.tree_map(one, *results, is_leaf=lambda leaf: type(leaf) is torch.Size)
