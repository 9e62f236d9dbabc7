"""How long one call takes at its best: what the probes of every stack time their products and copies with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best_seconds(call: Callable[[], Any], wait: Callable[[Any], None], repeats: int) -> float:
    """Seconds of the fastest of ``repeats`` synchronised calls after one that is not counted; of two where two take a
    quarter of a second, because a call as long as that averages its own noise."""
    wait(call())
    seconds: list[float] = []
    while len(seconds) < repeats and (len(seconds) < 2 or sum(seconds) < 0.25):
        start = time.perf_counter()
        wait(call())
        seconds.append(time.perf_counter() - start)
    return min(seconds)
