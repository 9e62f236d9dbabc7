"""When a faster step has paid for a slower start."""

from __future__ import annotations

import math
from collections.abc import Sequence

from detente.records.result import CellResult
from detente.report.numbers import count, seconds
from detente.report.page import Words, strong, words


def steps_to_lead(fast: CellResult, slow: CellResult) -> int | None:
    """The number of steps, the first included, after which ``fast`` has taken less time in all than ``slow``; None
    where its steady step is not the faster one, a figure is missing, or one of them had no cold start.

    A run of n steps takes the first one and n - 1 steady ones; importing and building are not counted.
    """
    if fast.steady_s is None or slow.steady_s is None or fast.first_s is None or slow.first_s is None:
        return None
    if not (_is_cold(fast) and _is_cold(slow)):
        return None
    gain = slow.steady_s.median - fast.steady_s.median
    late = fast.first_s - slow.first_s
    if not gain > 0 or not math.isfinite(late / gain):
        return None
    return 1 if late < 0 else 1 + math.floor(late / gain) + 1


def break_even(fast: CellResult, slow: CellResult) -> Words | None:
    """``jax takes 3.20 s longer to its first loss and 210 ms less per step: ahead of torch-eager after 17 steps.``"""
    steps = steps_to_lead(fast, slow)
    if steps is None:
        return None
    assert fast.steady_s and slow.steady_s and fast.first_s is not None and slow.first_s is not None
    late, gain = fast.first_s - slow.first_s, slow.steady_s.median - fast.steady_s.median
    if late < 0:
        return words(
            *(
                strong(fast.label),
                f" takes {seconds(-late)} less to its first loss and {seconds(gain)} less per ",
            ),
            *("step: ahead of ", strong(slow.label), " from the first step."),
        )
    return words(
        *(
            strong(fast.label),
            f" takes {seconds(late)} longer to its first loss and {seconds(gain)} less per step: ",
        ),
        *("ahead of ", strong(slow.label), f" after {count(steps, 'step')}."),
    )


def first_losses(cells: Sequence[CellResult]) -> Words | None:
    """How long every row takes to its first loss, the quickest first; None where fewer than two rows say it."""
    known = sorted(
        (c.first_s or 0.0, c.label + ("" if _is_cold(c) else " (no cold start was measured)"))
        for c in cells
        if c.status == "ok" and _finite(c.first_s)
    )
    if len(known) < 2:
        return None
    cold = any(c.compile is not None and c.compile.cache_state == "miss" for c in cells)
    said = ", ".join(f"{label} {seconds(took)}" for took, label in known)
    return words(
        f"To the first loss, compilation included{' (empty compile cache)' if cold else ''}: {said}."
    )


def _is_cold(cell: CellResult) -> bool:
    """Whether its first step may stand beside others' that were compiled with an empty cache."""
    return not any(f.rule == "cache-state-differs" and f.severity != "unchecked" for f in cell.findings)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
