"""The size of a user's model: what was typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detente.workloads.workload import Size


@dataclass(frozen=True)
class OwnSize(Size):
    """The one size of a user's model, called ``own``. ``dims`` are the arguments of the user's functions that have a
    whole number as default, or those of an ``hf:`` name.

    target     what the user typed
    functions  framework (``torch``, ``jax``) -> the function that makes the model in it; two of a pair
    settings   the ``key=value`` pairs after the ``?`` of an ``hf:`` name that are not dimensions
    defaults   framework -> the dimensions as its own function has them
    other      of a pair, for the side that follows: what is known of the torch side (own/side.py); None before it was
               made
    """

    target: str = ""
    functions: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[tuple[str, Any], ...] = ()
    defaults: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    other: Any = None

    @property
    def is_pair(self) -> bool:
        return len(self.functions) > 1

    @property
    def drops_out(self) -> bool:
        """Whether the model keeps its dropout."""
        return self.dims.get("dropout", 1) != 0

    def changed(self, framework: str) -> dict[str, int]:
        """The dimensions that differ from what a framework's function has by itself: overridden, or set by the other
        side of a pair. A function has an argument for some of them."""
        own = self.defaults.get(framework, {})
        return {n: v for n, v in self.dims.items() if own.get(n) != v}
