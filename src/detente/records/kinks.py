"""Where a workload has no derivative, and what was done about it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kinks:
    """What the forward pass that ``prepare`` walked has met.

    met       operators with a kink or a jump, by their name in ATen, and how often; empty: the function is smooth
    moved     biases in front of ReLUs that were moved into a gap of their inputs
    furthest  the largest move of a channel
    nearest   the smallest input, in size, that a ReLU behind a moved bias has now, over its inputs' standard deviation
    left      ReLUs in front of which no bias could be moved: a flip there is within the proof's bound
    reason    why nothing was walked; empty when it was
    """

    met: dict[str, int] = field(default_factory=dict)
    moved: int = 0
    furthest: float = 0.0
    nearest: float | None = None
    left: int = 0
    reason: str = ""
