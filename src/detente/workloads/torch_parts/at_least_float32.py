"""Pieces of ``transformers`` that compute in float32 whatever they are given, here *raised to at least* float32.

They narrow the values of a float64 model, and the proof in float64 could then only hold to 1e-8. In every narrower
dtype a raised piece does the same operations as the library's own.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def raised(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or as it is where it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def become(module: nn.Module, kind: type[M]) -> M:
    """``module`` with the methods of ``kind``, a subclass of its own class that adds no state: parameters, buffers and
    names stay what ``transformers`` made."""
    if not issubclass(kind, type(module)):
        raise TypeError(f"{kind.__name__} is no {type(module).__name__}")
    module.__class__ = kind
    return module  # type: ignore[return-value]


def shifted_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: object
) -> torch.Tensor:
    """The causal loss of ``transformers``, which writes ``logits.float()``: position t predicts token t + 1, the mean
    over batch x (sequence - 1)."""
    shifted = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return nn.functional.cross_entropy(
        raised(logits).view(-1, vocab_size), shifted.view(-1), ignore_index=-100
    )
