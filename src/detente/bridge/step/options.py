"""How a step behaves, as it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

BACKGROUND = "background"  # of ``Options.tune``


@dataclass(frozen=True)
class Options:
    """How a step behaves; see ``entry.compile``. ``seed`` is a uint32. Every field but those that ``cache.entry.key``
    leaves out by name is part of the persistent cache's key."""

    certificate: str = "full"
    seed: int = 0
    matmul: str = "highest"
    nonfinite: str = "raise"
    form: str | None = None
    tune: bool | str = False  # or BACKGROUND
    cache: bool = True
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    ema: float | None = None
    weights: str | Path | None = None
    quiet: bool = False

    @property
    def whole(self) -> str:
        """Why every gradient must exist before the first update; empty where it need not."""
        if self.clip_norm is not None:
            return "clipping by the global norm needs every gradient before the first update"
        if self.accumulate > 1:
            return "accumulation adds up every gradient before the first update"
        return ""

    def waits(self, rule: Any) -> str:
        """``whole``, or that ``rule`` needs them all."""
        return self.whole or ("the optimizer updates all parameters at once" if rule.together else "")

    def surroundings(self, rule: Any) -> Any:
        """What changes the executable beside the graph, with a ``repr`` that is the same in every process."""
        groups = [(g.names, g.literals, g.members) for g in rule.rule.groups]
        clipped = (self.clip_norm, self.clip_value, self.ema, self.accumulate)
        return (rule.name, groups, clipped, self.matmul)
