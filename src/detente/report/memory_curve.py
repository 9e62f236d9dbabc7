"""What a compiled program holds from operation to operation, as a line."""

from __future__ import annotations

from detente.programs.live_memory import LiveMemory
from detente.programs.parts import Kernel

# A line has no more points than the drawing can show; of those that fall on one the largest is kept.
POINTS = 400


def outline(live: LiveMemory, top: int, width: float, height: float) -> str:
    """The points of an SVG polygon: temporaries over the operations in their order; ``top`` bytes are ``height``."""
    count = len(live.temporary)
    if not count or not top:
        return ""
    step = max(1, -(-count // POINTS))
    tops = [max(live.temporary[k : k + step]) for k in range(0, count, step)]
    dx = width / max(len(tops) - 1, 1)
    line = [f"{k * dx:.1f},{height - height * size / top:.1f}" for k, size in enumerate(tops)]
    return " ".join([f"0,{height:.1f}", *line, f"{width:.1f},{height:.1f}"])


def peak_words(live: LiveMemory, kernels: tuple[Kernel, ...]) -> str:
    """The operation at which most is there, and its part."""
    name = live.operations[live.peak] if live.operations else ""
    part = next((k.part for k in kernels if k.name == name), None)
    where = f" of {part.path or 'the loss'} {part.direction}" if part is not None else ""
    return f"{name}{where}, operation {live.peak + 1:,} of {len(live.operations):,}"
