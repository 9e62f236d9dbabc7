"""Numbers as people read them: three significant digits and a unit. None is a dash, never a zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class Scale:
    """A unit and the quantity it stands for, in the base unit of its family."""

    unit: str
    size: float


SECONDS = (
    Scale("ns", 1e-9),
    Scale("µs", 1e-6),
    Scale("ms", 1e-3),
    Scale("s", 1.0),
    Scale("min", 60.0),
    Scale("h", 3600.0),
)
BYTES = (Scale("B", 1.0), Scale("kB", 1e3), Scale("MB", 1e6), Scale("GB", 1e9), Scale("TB", 1e12))
FLOPS = (
    Scale("FLOP", 1.0),
    Scale("kFLOP", 1e3),
    Scale("MFLOP", 1e6),
    Scale("GFLOP", 1e9),
    Scale("TFLOP", 1e12),
    Scale("PFLOP", 1e15),
)
# Up to here a unit is kept: 100 s reads better than 1.67 min.
_KEEP = {"s": 180.0, "min": 180.0}


def significant(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits, never in scientific notation between 1e-4 and 1e15.

    >>> significant(1.4), significant(0.99961), significant(1234.0), significant(None)
    ('1.40', '1.00', '1230', '–')
    """
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - magnitude)
    magnitude = math.floor(math.log10(abs(rounded)))
    if magnitude < -4 or magnitude > 15:
        return f"{value:.{digits - 1}e}"
    return f"{rounded:.{max(0, digits - 1 - magnitude)}f}"


def pick(value: float, scales: tuple[Scale, ...]) -> Scale:
    """The unit in which ``value`` has one to three digits before the point, after rounding."""
    chosen = scales[0]
    for smaller, scale in zip((None, *scales), scales, strict=False):
        limit = (
            scale.size if smaller is None else max(scale.size, _KEEP.get(smaller.unit, 0.0) * smaller.size)
        )
        # 999.6 ms rounds to 1000 ms, which is 1.00 s.
        if abs(value) >= limit * 0.9995:
            chosen = scale
    return chosen


def quantity(value: float | None, scales: tuple[Scale, ...], suffix: str = "") -> str:
    """A value with its unit.

    >>> quantity(0.0427, SECONDS), quantity(2.15e9, BYTES), quantity(9.52e10, FLOPS, "/s")
    ('42.7 ms', '2.15 GB', '95.2 GFLOP/s')
    """
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return significant(value)
    scale = pick(value, scales)
    return f"{significant(value / scale.size)} {scale.unit}{suffix}"


def seconds(value: float | None) -> str:
    """Seconds with the unit that fits."""
    return quantity(value, SECONDS)


def span(value: float | None, low: float | None, high: float | None, scales: tuple[Scale, ...]) -> str:
    """The ends of an interval in the unit of its middle, without the unit: ``42.1 to 43.4``; empty when
    there is none.

    Digits are added, up to five, until the ends differ: an interval that prints as ``100 to 100`` says
    nothing.
    """
    if value is None or low is None or high is None:
        return ""
    scale = pick(value, scales)
    return plain_span(low / scale.size, high / scale.size)


def plain_span(low: float, high: float) -> str:
    """The ends of an interval without a unit, to the same decimals: three significant digits of the end
    nearer to zero, and more until the ends differ. So an interval that ends just above 1 does not print as
    if it ended at 1.

    >>> plain_span(0.9784, 1.0021), plain_span(42.11, 43.42), plain_span(100.01, 100.04)
    ('0.978 to 1.002', '42.1 to 43.4', '100.01 to 100.04')
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{significant(low)} to {significant(high)}"
    least = min(abs(low), abs(high))
    if least == 0 or max(abs(low), abs(high)) > 100 * least:
        return f"{significant(low)} to {significant(high)}"
    decimals = max(0, 2 - math.floor(math.log10(least)))
    ends = ("", "")
    for extra in range(3):
        ends = f"{low:.{decimals + extra}f}", f"{high:.{decimals + extra}f}"
        if ends[0] != ends[1]:
            break
    return f"{ends[0]} to {ends[1]}"


def duration(value: float) -> str:
    """How long something took, as a clock says it: ``48 s``, ``7 min 51 s``, ``1 h 2 min``."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")


def percent(share: float | None) -> str:
    """A share as per cent: ``41.2 %``."""
    return NOTHING if share is None else f"{significant(share * 100)} %"


def margin(relative: float) -> str:
    """A margin as it is said: ``2 %``, ``4.1 %``; from 100 % on as a factor.

    >>> margin(0.02), margin(0.0412), margin(7.5)
    ('2 %', '4.1 %', 'a factor of 8.50')
    """
    if relative >= 1:
        return f"a factor of {significant(1 + relative)}"
    text = significant(relative * 100, 2)
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 block``, ``5 processes``."""
    return f"{number} {one if number == 1 else (many or one + 's')}"
