"""Our run of a sample against torch's: exact in kind and shape, close in value, by the rule of each precision.

float64: every element within the operator's relative tolerance (``tolerances.py``) of torch's float64.
bfloat16: errors against torch's float64 run of the same bfloat16 inputs; ours may be twice torch's own largest
error plus one rounding of bfloat16 (four times and two roundings of the largest element for gradients).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opinfo.samples import Run, wide

ROUNDING = 2.0**-8  # half a unit in the last place of bfloat16, relative


@dataclass(frozen=True)
class Tolerance:
    """Relative errors allowed in float64, and why when they are not the default."""

    forward: float = 1e-10
    gradient: float = 1e-9
    reason: str = ""


def _kind(mine: np.ndarray, theirs: np.ndarray) -> str:
    if mine.shape != theirs.shape:
        return f"shape {mine.shape}, torch {theirs.shape}"
    return "" if mine.dtype == theirs.dtype else f"dtype {mine.dtype}, torch {theirs.dtype}"


def _worst(bad: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> str:
    return f"{int(bad.sum())} of {bad.size} differ: {mine[bad][:3]}, torch {theirs[bad][:3]}"


def _same_infinities(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))


def _close(mine: np.ndarray, theirs: np.ndarray, allowed: np.ndarray | float) -> str:
    with np.errstate(invalid="ignore", over="ignore"):
        bad = ~(_same_infinities(mine, theirs) | (np.abs(mine - theirs) <= allowed))
    return _worst(bad, mine, theirs) if bad.any() else ""


def _float64(mine: np.ndarray, theirs: np.ndarray, tolerance: float) -> str:
    problem = _kind(mine, theirs)
    if problem or mine.size == 0:
        return problem
    mine, theirs = wide(mine), wide(theirs)
    if theirs.dtype.kind not in "fc":
        return _worst(mine != theirs, mine, theirs) if (mine != theirs).any() else ""
    scale = np.maximum(np.abs(np.where(np.isfinite(theirs), theirs, 0)), 1)
    return _close(mine, theirs, tolerance * scale)


def _bfloat16(mine: np.ndarray, theirs: np.ndarray, exact: np.ndarray, gradient: bool) -> str:
    problem = _kind(mine, theirs)
    if problem or mine.size == 0:
        return problem
    mine, theirs, exact = wide(mine), wide(theirs), wide(exact)
    if theirs.dtype.kind not in "fc":
        return _worst(mine != theirs, mine, theirs) if (mine != theirs).any() else ""
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(exact) & np.isfinite(theirs)
        own = np.abs(theirs - exact)[finite].max(initial=0)
        size = np.abs(exact)[finite].max(initial=0)
    # Where torch's bfloat16 left the float range we may, too.
    mine = np.where(np.isfinite(theirs), mine, theirs)
    exact = np.where(np.isfinite(theirs) & np.isfinite(exact), exact, theirs)
    allowed = (
        4 * own + 2 * ROUNDING * size
        if gradient
        else 2 * own + ROUNDING * np.abs(exact) + 1e-3 * ROUNDING * size
    )
    return _close(mine, exact, allowed)


def problems(mine: Run, theirs: Run, exact: Run | None, tolerance: Tolerance) -> str:
    """What is wrong with our run, in words; empty when nothing is. ``exact`` judges a bfloat16 run."""
    found = [f"fault: {mine.fault}"] if mine.fault else []
    for part, ours, others, right, limit in (
        ("output", mine.outputs, theirs.outputs, exact and exact.outputs, tolerance.forward),
        ("gradient", mine.gradients, theirs.gradients, exact and exact.gradients, tolerance.gradient),
    ):
        for i, (a, given) in enumerate(zip(ours, others, strict=True)):
            b = np.zeros_like(a) if given is None else given
            if mine.random:
                text = _kind(a, b)
            elif exact is None:
                text = _float64(a, b, limit)
            else:
                c = right[i] if right and right[i] is not None else b
                text = _bfloat16(a, b, c, part == "gradient")
            if text:
                found.append(f"{part} {i}: {text}")
    return "; ".join(found)
