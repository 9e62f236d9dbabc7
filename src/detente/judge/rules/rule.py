"""What a rule is, and what it gets to see: the evidence of a whole group, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from detente.judge.floor import Peak, Work
from detente.records.cell import Cell
from detente.records.finding import Severity
from detente.records.result import ParityColumn
from detente.records.session import Process

_MISSING = object()


@dataclass(frozen=True)
class Row:
    """One cell with every process that finished for it, and what the proof said of it.

    ``processes`` are the timing processes in the order in which they ran, ``others`` those of every other kind
    (memory, capture, probe). ``steady`` is the median of process medians, seconds per step.
    """

    cell: Cell
    processes: tuple[Process, ...]
    others: tuple[Process, ...] = ()
    parity: ParityColumn | None = None
    steady: float | None = None

    @property
    def fine(self) -> tuple[Process, ...]:
        """The timing processes that ended well."""
        return tuple(p for p in self.processes if p.evidence.status == "ok")

    def every(self, key: str) -> list[Any]:
        """What each process says under ``key`` (``slope``, or ``host.collector`` for one entry of a probe),
        processes without it left out."""
        head, _, rest = key.partition(".")
        found = []
        for p in (*self.fine, *(o for o in self.others if o.evidence.status == "ok")):
            value = p.evidence.probes.get(head, _MISSING)
            if isinstance(value, dict) and value.keys() == {"error"}:
                continue  # the probe itself failed: no evidence, see ``broken``
            if rest:
                value = value.get(rest, _MISSING) if isinstance(value, dict) else _MISSING
            if value is not _MISSING and value is not None:
                found.append(value)
        return found

    def broken(self, key: str) -> str:
        """What the probe behind ``key`` says when it failed; empty when it did not."""
        for p in (*self.fine, *self.others):
            value = p.evidence.probes.get(key.partition(".")[0])
            if isinstance(value, dict) and value.keys() == {"error"}:
                return str(value["error"])
        return ""

    def get(self, key: str, otherwise: Any = None) -> Any:
        """What the first process that knows ``key`` says."""
        return next(iter(self.every(key)), otherwise)

    def has(self, key: str) -> bool:
        """Whether any process brought ``key`` back. ``samples`` and ``compile`` are there when a process is;
        ``processes`` always is."""
        if key == "processes":
            return True
        if key == "replay":
            windows = (p.evidence.window for p in self.fine)
            return any(not r.reason for w in windows if w is not None for r in w.replays)
        if key == "parent":
            return any(p.evidence.window is not None and p.evidence.window.parent_wall_ns for p in self.fine)
        if key == "window":
            return any(p.evidence.window is not None for p in self.fine)
        if key == "window.errors":
            # Of a model that is too large for a reference nothing was held against one.
            windows = (p.evidence.window for p in self.fine)
            return any(w is not None and bool(w.errors or w.replays) for w in windows)
        if key in ("samples", "compile"):
            return any(p.evidence.samples for p in self.fine)
        if key == "parity":
            levels = (
                (self.parity.same_function, self.parity.same_precision) if self.parity else ("not checked",)
            )
            return "failed" in levels or "not checked" not in levels
        return bool(self.every(key))

    @property
    def platform(self) -> str:
        """The device that the row really ran on: the cell's, or what the outputs said where the cell is ``auto``."""
        if self.cell.device != "auto":
            return self.cell.device
        told = self.get("devices.platform") or next(iter(self.get("devices.outputs", ())), "cpu")
        return str(told)

    @property
    def recipe(self) -> str:
        """``whole-step`` or ``out-of-the-box``: what the catalogue declares of the stack. Sessions that were stored
        before there was such a key have it under the region."""
        return str(self.get("declared.recipe") or self.get("region.recipe", "whole-step"))

    @property
    def compiled(self) -> str:
        """``program`` where a step was seen to start XLA executables, ``regions`` where it ran regions that torch
        compiled, ``none`` where it did neither, ``unknown`` where nobody watched."""
        if not self.has("observed"):
            return "unknown"
        if self.get("observed.launches"):
            return "program"
        return "regions" if self.get("observed.regions") else "none"


@dataclass(frozen=True)
class Group:
    """The rows that are compared with each other, the reference (the first named) first."""

    name: str
    rows: tuple[Row, ...]
    work: Work | None = None
    peak: Peak | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """What a check found at one row: one line with values, the evidence behind it, and a severity where it is not
    the rule's own; ``unchecked`` where the evidence is there and says nothing."""

    row: Row
    what: str
    evidence: dict[str, Any] = field(default_factory=dict)
    severity: Severity | None = None


Check = Callable[[Group], Iterable[Hit]]


@dataclass(frozen=True)
class Rule:
    """One pitfall: the record from which its check, its page and its line in the documentation come.

    code      readable and stable: ``clock-stops-early``; ``alias`` is its number in the list of pitfalls (``P1``)
    severity  ``void``: no ratio with this row is printed. ``warn``: said on the row
    evidence  what the check reads: keys of ``Evidence.probes`` (``slope``, ``host.collector``), or ``samples``,
              ``compile``, ``parity``, ``floor``, ``processes``; ``a|b`` where either will do. A row that lacks one
              is "not checked"
    cpu       the list of pitfalls marks it as detectable without a GPU
    check     group -> hits. None: nothing can check it here, and ``unchecked`` says why
    partly    evidence without which the rule still checks something: what is missing of it is said as "not checked"
    applies   rows for which the question makes sense; for the others the rule says nothing at all
    """

    code: str
    alias: str
    family: str
    severity: Literal["void", "warn"]
    title: str
    what: str
    why: str
    evidence: tuple[str, ...]
    detected: str
    fix: str
    waive: str
    example: str
    cpu: bool
    check: Check | None = None
    applies: Callable[[Row], bool] = lambda row: True
    unchecked: str = ""
    partly: tuple[str, ...] = ()


def each(test: Callable[[Row, Group], Iterable[tuple[str, dict[str, Any]]] | None]) -> Check:
    """A check that looks at one row at a time: ``test`` gives (what, evidence) pairs."""

    def check(group: Group) -> Iterator[Hit]:
        for row in group.rows:
            for what, evidence in test(row, group) or ():
                yield Hit(row, what, evidence)

    return check


def moving_bytes(row: Row) -> int | None:
    """Bytes of state that a step changes; of sessions of before the frozen parts were told apart, of all of it."""
    return row.get("region.moving_bytes") or row.get("region.state_bytes")


def on_gpu(row: Row) -> bool:
    """Rows of devices with streams, clocks and an allocator of their own."""
    return row.platform != "cpu"


def train_step(row: Row) -> bool:
    return row.cell.contract.region == "train-step"
