"""The record of a choice: ``step.choice``."""

from __future__ import annotations

from dataclasses import dataclass

from detente.bridge.shown import size, table


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

    def _repr_html_(self) -> str:
        rows = []
        for row in self.considered:
            planned = "" if row.peak_bytes is None else size(row.peak_bytes)
            temporary = "" if row.temp_bytes is None else size(row.temp_bytes)
            measured = "" if row.seconds is None else f"{row.seconds * 1e3:.3g} ms"
            note = f"not possible: {row.refused}" if row.refused else "" if planned else "not compiled"
            chosen = "this one" if row.form == self.form else note
            rows.append([row.form, planned, temporary, measured, chosen])
        head = ("form", "planned peak", "of it temporary", "a step", "")
        return table(f"Choice: {self.form}, {self.why}", rows, head)

    def __str__(self) -> str:
        lines = [f"{self.form}: {self.why}"]
        for row in self.considered:
            if row.refused:
                lines.append(f"  {row.form:<16} not possible: {row.refused}")
                continue
            cells = ["not compiled" if row.peak_bytes is None else f"peak {size(row.peak_bytes)}"]
            if row.temp_bytes is not None:
                cells.append(f"of it temporary {size(row.temp_bytes)}")
            if row.seconds is not None:
                cells.append(f"{row.seconds * 1e3:.3g} ms per step")
            lines.append(f"  {row.form:<16} " + ", ".join(cells))
        return "\n".join(lines)
