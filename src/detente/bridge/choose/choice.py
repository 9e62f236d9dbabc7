"""The record of a choice: ``step.choice``."""

from __future__ import annotations

from dataclasses import dataclass

from detente.bridge.shown import size, table

# How much faster something else must be before it is recommended: less is what two runs of one thing differ by.
CLOSE = 1.05


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
    to fit into, None when unknown; ``measured`` says whether times decided. ``beside``: seconds of a step of PyTorch's
    own (``torch-eager``, ``torch-compile``) and of this form (``detente``), timed in turns, where somebody asked.
    """

    form: str
    policy: str | None
    why: str
    considered: tuple[Considered, ...]
    iterations: tuple[int, ...] = ()
    limit_bytes: int | None = None
    measured: bool = False
    beside: tuple[tuple[str, float], ...] = ()

    @property
    def advice(self) -> str:
        """When not to: what was faster than this form on this machine. Empty where nothing was, or nobody measured.

        >>> Choice("unrolled", None, "", (), beside=(("torch-eager", 0.5), ("detente", 0.8))).advice
        'stay with torch-eager on this machine: a step takes 500 ms there and 800 ms here'
        """
        seconds = dict(self.beside)
        ours = seconds.pop("detente", None)
        if ours is None or not seconds:
            return ""
        name = min(seconds, key=lambda side: seconds[side])
        if seconds[name] * CLOSE >= ours:
            return ""
        there, here = (f"{s * 1e3:.3g} ms" for s in (seconds[name], ours))
        return f"stay with {name} on this machine: a step takes {there} there and {here} here"

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
        advice = f"; {self.advice}" if self.advice else ""
        return table(f"Choice: {self.form}, {self.why}{advice}", rows, head)

    def __str__(self) -> str:
        lines = [f"{self.form}: {self.why}"]
        lines += [self.advice] if self.advice else []
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
        lines += [f"  {name:<16} {seconds * 1e3:.3g} ms per step, in turns" for name, seconds in self.beside]
        return "\n".join(lines)
