"""What others did to the machine while a session ran, and what may be said all the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from detente.records.result import MachineLoad
from detente.records.session import Process, Session, Wait

# Share of the machine's CPU time. Quiet machines measure 0.00 to 0.04; a tenth is a fifth of one core of two, or a
# program that wakes up once in a while on a larger one.
BUSY = 0.10
_NAMES = 3


def load_of(session: Session, blocks: Sequence[int]) -> MachineLoad:
    """The load of others over the whole blocks of a session.

    Busy is a session of which *any* block was, in the mean over its processes weighted by their seconds, or any row in
    the median over its processes: a neighbour that comes in three blocks of ten, or always beside the same row, moves a
    ratio as well as one that stays. A wait that ended without a quiet machine counts, whatever was measured
    afterwards. A share that is missing, NaN or no share counts as unknown, and unknown is not quiet.
    """
    chosen = set(blocks)
    timed = [p for p in session.processes if p.kind == "time" and p.block in chosen]
    known = [p for p in timed if is_share(p.foreign)]
    by_block: dict[int, list[Process]] = {}
    by_row: dict[str, list[float]] = {}
    for p in known:
        by_block.setdefault(p.block, []).append(p)
        by_row.setdefault(p.cell.key, []).append(p.foreign)
    shares = [_mean(ps) for ps in by_block.values()]
    busy = sum(share > BUSY for share in shares)
    # Waits before a block that was never finished count too: they are the session's, not the block's.
    waits = [w for p in session.processes for w in p.waits]
    row = max((median(found) for found in by_row.values()), default=0.0)
    gave_up = any(not w.quiet for w in waits)
    share, worst = (_mean(known), max(shares)) if known else (None, None)
    unknown = len(timed) - len(known)
    return MachineLoad(
        share,
        worst,
        BUSY,
        busy,
        unknown,
        math.fsum(w.seconds for w in waits),
        gave_up,
        _names(waits),
        _reason(len(shares), busy, worst, row, waits, unknown),
    )


def is_share(value: float | None) -> bool:
    """Whether this is a share at all: files from elsewhere may hold NaN, nothing, or a figure in per cent."""
    return value is not None and 0.0 <= value <= 1.0


def _mean(processes: Iterable[Process]) -> float:
    found = [(p.foreign, p.wall_s if 0 < p.wall_s < math.inf else 0.0) for p in processes]
    seconds = math.fsum(wall for _, wall in found)
    if not seconds:  # an imported session without the lives of its processes
        return math.fsum(share for share, _ in found) / len(found)
    return math.fsum(share * wall for share, wall in found) / seconds


def _reason(
    blocks: int, busy: int, worst: float | None, row: float, waits: Sequence[Wait], unknown: int
) -> str:
    if busy and worst is not None:
        return f"others used up to {100 * worst:.0f} % of this machine ({busy} of {blocks} blocks)"
    if row > BUSY:
        return f"others used {100 * row:.0f} % of this machine beside one of the rows"
    left = [w.after for w in waits if not w.quiet]
    if left:
        share = max((x for x in left if is_share(x)), default=None)
        told = "" if share is None else f", {100 * share:.0f} % used by others"
        return f"the machine did not become quiet before the clock started{told}"
    if unknown:
        return "how much others used this machine was not recorded"
    return ""


def _names(waits: Iterable[Wait]) -> tuple[str, ...]:
    largest: dict[str, float] = {}
    for wait in waits:
        if not wait.quiet or wait.seconds > 0:
            for n in wait.neighbours:
                largest[n.name] = max(largest.get(n.name, 0.0), n.share)
    return tuple(sorted(largest, key=lambda name: -largest[name]))[:_NAMES]
