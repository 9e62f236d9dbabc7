"""The physical floor of a step: no machine does the work faster than its own measured peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from detente.records.result import Floor

# A row under this share of the floor is void; between it and 1 the peak was measured too low, and is raised.
IMPOSSIBLE = 0.8
# The same where others used the machine while the peaks were measured. A neighbour takes half of two cores, and the
# probes' best of many readings less than that: a factor of ten is not load.
IMPOSSIBLE_BUSY = 0.1
# Traffic that a last-level cache may hold says nothing about memory bandwidth: a step that moves less than this is
# bounded by its arithmetic alone (large caches of today: 50 MB on an H100, 32 to 96 MB on a desktop processor).
CACHED = 64 * 2**20


@dataclass(frozen=True)
class Work:
    """What a group must do in one step: floating-point operations of its products, and compulsory bytes. ``least``:
    the operations without what a mask hides, which nobody's result depends on; 0 where nothing is hidden. ``counted``:
    nobody stated it, and it is what the leanest of the captured programs does."""

    flops: int
    bytes: int
    least: int = 0
    counted: bool = False

    @property
    def least_flops(self) -> int:
        return self.least or self.flops


@dataclass(frozen=True)
class Peak:
    """Best rates that any probe of the session reached at one device and precision. ``shape`` is the (m, k, n) of
    the fastest product; ``raised_by`` the row that went faster than the probes, if any did; ``busy`` that others used
    the machine in every process that probed, so that the rates are lower bounds of what it can do."""

    flops: float
    bytes: float
    shape: tuple[int, int, int] | None = None
    raised_by: str = ""
    busy: bool = False

    def seconds(self, work: Work) -> tuple[float, str]:
        """The floor of ``work`` and which of the two binds: the larger, never the sum, because a machine computes
        and moves data at the same time. Bytes that fit a cache bind nothing."""
        compute = work.flops / self.flops
        traffic = work.bytes / self.bytes if work.bytes > CACHED else 0.0
        return (compute, "flops") if compute >= traffic else (traffic, "bytes")


def best_peak(probes: Iterable[Mapping[str, Any]], *, busy: bool = False) -> Peak | None:
    """The best of the ``peak`` probes of rows that share device and precision; None while either rate is missing."""
    products: list[tuple[float, tuple[int, int, int]]] = []
    copies: list[float] = []
    for probe in probes:
        products += [
            (float(rate), (int(m), int(k), int(n))) for m, k, n, rate in probe.get("shapes", ()) if rate
        ]
        if probe.get("copy_bytes_per_s"):
            copies.append(float(probe["copy_bytes_per_s"]))
    if not products or not copies:
        return None
    rate, shape = max(products)
    return Peak(rate, max(copies), shape, busy=busy)


def raise_peak(peak: Peak, steady: Mapping[str, tuple[Work, float]]) -> Peak:
    """The peak after the rows have been seen: ``steady`` maps a row to its work and its seconds per step. A row
    between 0.8 of the floor and the floor shows that the probes measured too little; the rate that binds it becomes
    what the row reached. A row under 0.8 raises nothing, and where the peaks themselves are in doubt no row does: how
    fast a row was is no measure of a machine that nobody measured."""
    if peak.busy:
        return peak
    for row, (work, seconds) in steady.items():
        floor, bound = peak.seconds(work)
        if IMPOSSIBLE * floor <= seconds < floor:
            if bound == "flops":
                peak = replace(peak, flops=work.flops / seconds, raised_by=row)
            else:
                peak = replace(peak, bytes=work.bytes / seconds, raised_by=row)
    return peak


def floor_column(work: Work, peak: Peak, seconds: float | None, row: str) -> Floor:
    """The column of one row, ``seconds`` being its steady median."""
    floor, bound = peak.seconds(work)
    notes = [] if work.bytes > CACHED else ["its bytes fit a cache: bandwidth is no bound"]
    if peak.busy:
        notes.append("others used the machine while its peaks were measured: the true floor is lower")
    if peak.raised_by:
        who = "this row" if peak.raised_by == row else peak.raised_by
        notes.append(f"peak raised: {who} went faster than every probe")
    share = floor / seconds if seconds else None
    if peak.busy and share is not None and share > 1:
        # 277 % of what is physically possible stood in the table: of a machine that nobody measured there is no share.
        share = None
    return Floor(work.flops, work.bytes, peak.flops, peak.bytes, floor, share, bound, "; ".join(notes))


def impossible(work: Work, peak: Peak, seconds: float) -> bool:
    """Whether a steady median is below what is physically possible, by more than the probes can be wrong."""
    least = IMPOSSIBLE_BUSY if peak.busy else IMPOSSIBLE
    return seconds < least * peak.seconds(replace(work, flops=work.least_flops))[0]
