"""What the dimensions of a size must satisfy together: a table of conditions, each with its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Dims = Mapping[str, int]


@dataclass(frozen=True)
class Constraint:
    """``holds`` of the dimensions; ``says`` what must hold, for whoever set one that does not fit."""

    holds: Callable[[Dims], bool]
    says: str


def divides(part: str, whole: str) -> Constraint:
    """``whole`` is a multiple of ``part``.

    >>> divides("heads", "hidden").holds({"heads": 3, "hidden": 64})
    False
    """
    return Constraint(lambda dims: dims[whole] % dims[part] == 0, f"{whole} must be a multiple of {part}")


def within(inner: str, outer: str) -> Constraint:
    """``inner`` is at most ``outer``."""
    return Constraint(lambda dims: dims[inner] <= dims[outer], f"{inner} must be at most {outer}")


def multiple(dim: str, of: int) -> Constraint:
    """``dim`` is a multiple of a number."""
    return Constraint(lambda dims: dims[dim] % of == 0, f"{dim} must be a multiple of {of}")


def at_most(dim: str, most: int) -> Constraint:
    """``dim`` is at most a number."""
    return Constraint(lambda dims: dims[dim] <= most, f"{dim} must be at most {most}")


def at_least(dim: str, least: int) -> Constraint:
    """``dim`` is at least a number."""
    return Constraint(lambda dims: dims[dim] >= least, f"{dim} must be at least {least}")
