"""What a certificate says: one row per compared tensor, and what is said of those that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from detente.bridge.refusal import Reason, Refused
from detente.bridge.shown import table


@dataclass(frozen=True)
class Row:
    """One tensor. ``error`` and ``reference_error`` are rms distances to the float64 reference (to torch
    eager, where the module has no float64 form); ``allowed`` is what ``error`` may be."""

    kind: str  # loss, gradient, buffer, update; repeat: eager's loss differs from itself
    name: str
    error: float
    reference_error: float
    allowed: float
    judged: bool = True

    @property
    def ok(self) -> bool:
        return not self.judged or self.error <= self.allowed


@dataclass(frozen=True)
class Certificate:
    """``level`` is ``full`` or ``short``; ``reference`` says what the errors are measured against. ``of`` says which
    part of the model was compared (``short``), ``stored`` when it was written to the bridge's cache (empty: it was
    made in this process)."""

    level: str
    reference: str
    rows: tuple[Row, ...]
    versions: Mapping[str, str]
    of: str = ""
    stored: str = ""

    @cached_property  # asked before every step
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def failed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.ok)

    def __repr__(self) -> str:
        said = "passed" if self.ok else f"failed in {len(self.failed)}"
        return f"<Certificate {self.level}, {said}, {len(self.rows)} tensors; print() shows them>"

    def _repr_html_(self) -> str:
        rows = []
        for kind, found in self._by_kind().items():
            judged = [r for r in found if r.judged]
            worst = max((r.error / r.allowed for r in judged if r.allowed), default=0.0)
            failed = [r.name for r in found if not r.ok]
            more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
            said = f"FAILED: {', '.join(failed[:5])}{more}" if failed else "passed"
            if found:
                rows.append([kind, f"{len(judged)} of {len(found)}", f"{worst:.2f}", said])
        state = "passed" if self.ok else f"FAILED ({len(self.failed)} tensors)"
        caption = (
            f"Certificate {self.level}{f' of {self.of}' if self.of else ''} {state}, against {self.reference}"
        )
        return table(caption, rows, ("tensors", "judged", "worst, of allowed", ""))

    def _by_kind(self) -> dict[str, list[Row]]:
        order = ("loss", "gradient", "buffer", "update", "repeat")
        kinds = dict.fromkeys((*order, *(row.kind for row in self.rows)))
        return {kind: [row for row in self.rows if row.kind == kind] for kind in kinds}

    def __str__(self) -> str:
        parts = []
        for kind, rows in self._by_kind().items():
            judged = [r for r in rows if r.judged]
            if rows:
                worst = max((r.error / r.allowed for r in judged if r.allowed), default=0.0)
                aside = f", {len(rows) - len(judged)} too small to judge" if len(judged) != len(rows) else ""
                parts.append(
                    f"{len(judged)} {kind}{'s' if len(judged) != 1 else ''} (worst {worst:.2f} of allowed{aside})"
                )
        state = "passed" if self.ok else f"FAILED ({len(self.failed)} tensors)"
        note = (f" of {self.of}" if self.of else "") + (f", stored {self.stored}" if self.stored else "")
        return f"certificate {self.level}{note} {state} against {self.reference}: " + ", ".join(parts)

    def record(self) -> dict[str, Any]:
        """Plain JSON."""
        rows = [vars(row) | {"ok": row.ok} for row in self.rows]
        return {
            "schema": "detente/certificate/1",
            "level": self.level,
            "reference": self.reference,
            "of": self.of,
            "stored": self.stored,
            "ok": self.ok,
            "versions": dict(self.versions),
            "rows": rows,
        }

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> Certificate:
        """The inverse of ``record``. Raises KeyError, TypeError or ValueError for anything else."""
        if record["schema"] != "detente/certificate/1":
            raise ValueError(record["schema"])
        rows = tuple(Row(**{k: v for k, v in row.items() if k != "ok"}) for row in record["rows"])
        return Certificate(
            record["level"],
            record["reference"],
            rows,
            record["versions"],
            record["of"],
            record["stored"],
        )


def refusal(certificate: Certificate) -> Refused:
    """What a failed certificate raises: every tensor that differs, worst first. Where eager differs from itself, that
    is the reason of everything else."""
    unrepeated = [row for row in certificate.failed if row.kind == "repeat"]
    if unrepeated:
        row = unrepeated[0]
        return Refused(
            [
                Reason(
                    "repeat",
                    "eager PyTorch gives another loss when it takes the same step again: the two differ by "
                    f"{row.error:.3g}, and sums in another order by {row.allowed:.3g} at most",
                )
            ]
        )
    worst = sorted(certificate.failed, key=lambda r: r.error / (r.allowed or 1e-300), reverse=True)
    return Refused(
        Reason(
            "certificate",
            f"{row.kind} {row.name}: rms error {row.error:.3g}, allowed {row.allowed:.3g} "
            f"(torch's own {row.reference_error:.3g})",
        )
        for row in worst[:20]
    )
