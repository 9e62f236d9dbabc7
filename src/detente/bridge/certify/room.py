"""Whether an eager step on copies finds room. It stands beside the training, and Linux gives out more memory than there
is: a process that then uses it is killed, in the second step, with everything that it has trained.

The need is reckoned from what XLA plans for the compiled step, which holds the same things: copies of weights and
optimizer state, the gradients twice (the optimizer's and those that are compared), and what lies between forward and
backward. Measured of ViT-B/16: 4.3 GB reckoned for the step in float64, 4.1 taken.

How it can fail: what eager holds between forward and backward is not what XLA holds; a library's scratch is in neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from detente.bridge.choose.memory import Memory, available_bytes


@dataclass(frozen=True)
class Room:
    """Bytes that an eager step on copies takes, as the module is and in float64; 0 where nobody knows."""

    plain: int = 0
    float64: int = 0

    @staticmethod
    def of(model: nn.Module, planned: Memory | None) -> Room:
        """``planned``: of the compiled step."""
        trained = [p for p in model.parameters() if p.requires_grad]
        held = sum(p.nbytes for p in trained)
        if planned is None or not held:
            return Room()
        plain = planned.argument + 2 * held + planned.temp
        wide = sum(p.numel() * (16 if p.is_complex() else 8) for p in trained)
        return Room(plain, plain * wide // held)


def too_little(needed: int) -> str:
    """What is missing, in words; empty where ``needed`` bytes are there.

    >>> too_little(0), too_little(1 << 60)[:37]
    ('', 'takes 1,152,921,504.6 GB, and there a')
    """
    there = available_bytes()
    return "" if needed <= there else f"takes {needed / 1e9:,.1f} GB, and there are {there / 1e9:,.1f}"
