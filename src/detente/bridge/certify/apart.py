"""How far the program's value of a tensor lies from the exact one, and how far torch's own does.

In 64 bits, and each tensor once: of a model of 124 million parameters a pass over them is a gigabyte. What is kept of a
tensor are three numbers, so that a certificate holds no copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

POOLED_LEAST = 20


@dataclass(frozen=True)
class Apart:
    """Root mean squares: of the program's ``error``, of torch's ``own``, and the ``size`` of the exact value."""

    error: float
    own: float
    size: float


def apart(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> Apart:
    """Of one tensor's three values, which may be of any dtypes."""
    wide = double(exact)
    return Apart(rms(_less(ours, wide)), rms(_less(theirs, wide)), rms(wide))


def apart_moved(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    exact: torch.Tensor,
    old: torch.Tensor,
    gradient: torch.Tensor | None,
) -> Apart:
    """Of updates from ``old``: a weight's own size would hide a wrong one. Elements whose ``gradient`` is rounding are
    left out; None: every element counts."""
    wide = numbers(exact)
    left_out = None if gradient is None else _rounding(numbers(gradient))
    counted = wide.numel() if left_out is None else wide.numel() - int(left_out.sum())

    def size(difference: torch.Tensor) -> float:
        if left_out is not None:
            difference.masked_fill_(left_out, 0.0)
        return _mean(difference, counted)

    return Apart(size(numbers(ours) - wide), size(numbers(theirs) - wide), size(wide - numbers(old)))


def pooled(found: Iterable[Apart], quantile: float = 0.95) -> float:
    """A quantile of torch's own relative errors over all tensors of a kind; 0 under twenty."""
    shares = sorted(share for a in found if a.size > 0 and math.isfinite(share := a.own / a.size))
    return shares[int(quantile * (len(shares) - 1))] if len(shares) >= POOLED_LEAST else 0.0


def rms(tensor: torch.Tensor) -> float:
    """The root mean square; infinite where there is a NaN."""
    wide = double(tensor)
    return _mean(wide, wide.numel())


def double(tensor: torch.Tensor) -> torch.Tensor:
    """In 64 bits; a complex tensor stays one, or nothing would be compared of its imaginary part."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """As ``double``, a complex number as its two parts: an optimizer divides each by its own root of squares."""
    wide = double(tensor)
    return torch.view_as_real(wide) if wide.is_complex() else wide


def _less(tensor: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """The difference in 64 bits, without a copy of what has a floating dtype already."""
    return (tensor if tensor.is_floating_point() or tensor.is_complex() else double(tensor)) - wide


def _rounding(gradient: torch.Tensor) -> torch.Tensor:
    """Elements whose update says nothing about the update rule. Adam's first step is ``g / (abs(g) + eps)``: where
    ``g`` is rounding noise, so is the update, and one such element would outweigh a whole tensor."""
    others = int(gradient.count_nonzero())
    least = 1e-2 * float(torch.linalg.vector_norm(gradient)) / math.sqrt(max(others, 1))
    return ~((gradient == 0) | (gradient.abs() >= least))


def _mean(tensor: torch.Tensor, count: int) -> float:
    """The root of the squares' sum over ``count``; infinite where there is a NaN, 0 of nothing."""
    value = float(torch.linalg.vector_norm(tensor)) / math.sqrt(count) if count else 0.0
    return math.inf if math.isnan(value) else value
