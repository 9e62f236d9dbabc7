"""Attention by the extension (kernels/attention.cc), as it is called in a program: float32, (batch, positions, heads,
size of a head)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from detente.bridge.kernels.targets import ATTENTION, OF_ATTENTION, call


@dataclass(frozen=True)
class Sizes:
    """What attends: ``l`` queries of ``d`` numbers to ``s`` keys and values of ``d`` and ``e``, in ``h`` heads."""

    b: int
    l: int  # noqa: E741 - as everybody calls it
    s: int
    h: int
    d: int
    e: int
    causal: bool
    scale: float
    dropout: float

    @classmethod
    def of(
        cls, query: Sequence[int], value: Sequence[int], causal: bool, scale: float, dropout: float
    ) -> Sizes:
        """Of (B, L, H, D) and (B, S, H, E)."""
        b, rows, h, d = query
        return cls(b, rows, value[1], h, d, value[3], causal, float(scale), float(dropout))


def attended(sizes: Sizes, query: Any, key: Any, value: Any, keep: Any) -> tuple[Any, Any]:
    """(B, L, H, E), and what its gradients need besides: (B, H, L). ``keep`` (B, H, L, S), of bools, is what dropout
    keeps, and one number where nothing is dropped."""
    shapes = [(sizes.b, sizes.l, sizes.h, sizes.e), (sizes.b, sizes.h, sizes.l)]
    result, logs = call(ATTENTION, shapes, query, key, value, keep, **asdict(sizes))
    return result, logs


def of_attended(sizes: Sizes, held: tuple[Any, ...], gradient: Any) -> tuple[Any, Any, Any]:
    """The gradients of ``query``, ``key`` and ``value``. ``held``: these, ``keep``, and both results."""
    query, key, value = call(OF_ATTENTION, [a.shape for a in held[:3]], *held, gradient, **asdict(sizes))
    return query, key, value
