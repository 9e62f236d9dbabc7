"""The record of a choice: ``step.choice``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Considered:
    """One form that was looked at. ``peak_bytes`` (arguments included) and ``temp_bytes`` are XLA's plan, None for a
    form that was not compiled; ``seconds`` is the measured median step, None where nothing was measured.
    ``refused`` says why the form was not possible."""

    form: str
    peak_bytes: int | None = None
    temp_bytes: int | None = None
    compile_seconds: float | None = None
    seconds: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Choice:
    """Which form runs and why.

    ``iterations`` are the counts of the program's loops (empty: nothing repeats); ``limit_bytes`` is what was there
    to fit into, None when unknown; ``measured`` says whether times decided.
    """

    form: str
    policy: str | None
    why: str
    considered: tuple[Considered, ...]
    iterations: tuple[int, ...] = ()
    limit_bytes: int | None = None
    measured: bool = False

    @property
    def peak_bytes(self) -> int | None:
        """The chosen form's planned peak."""
        return next((c.peak_bytes for c in self.considered if c.form == self.form), None)

    def __repr__(self) -> str:
        return f"<Choice {self.form}, of {len(self.considered)} considered; print() shows them>"

    def __str__(self) -> str:
        lines = [f"{self.form}: {self.why}"]
        for row in self.considered:
            if row.refused:
                lines.append(f"  {row.form:<16} not possible: {row.refused}")
                continue
            cells = ["not compiled" if row.peak_bytes is None else f"peak {_bytes(row.peak_bytes)}"]
            if row.temp_bytes is not None:
                cells.append(f"of it temporary {_bytes(row.temp_bytes)}")
            if row.seconds is not None:
                cells.append(f"{row.seconds * 1e3:.3g} ms per step")
            lines.append(f"  {row.form:<16} " + ", ".join(cells))
        return "\n".join(lines)


def _bytes(count: int) -> str:
    """Three significant digits in binary units.

    >>> _bytes(16_600_000_000)
    '15.5 GiB'
    """
    value, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, bigger
    return f"{value:.3g} {unit}"
