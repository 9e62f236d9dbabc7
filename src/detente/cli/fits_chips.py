"""``detente fits --chip``: rows compiled for chips that are not here, beside what the chips have."""

from __future__ import annotations

import json
from dataclasses import dataclass

from detente.cli.live import progress_sink
from detente.cli.text import say
from detente.records.cell import Cell
from detente.records.chip import CHIPS, Chip, find_chip
from detente.records.evidence import Evidence
from detente.report.columns import columns
from detente.session.request import Request


@dataclass(frozen=True)
class OnChip:
    """One line: a row in one form on one chip. ``plan`` is empty where there is none, and ``reason`` says why."""

    cell: Cell
    chip: Chip
    form: str
    plan: dict[str, int]
    status: str
    reason: str

    @property
    def fits(self) -> bool | None:
        return self.plan["peak"] <= self.chip.memory if "peak" in self.plan else None


def plan_and_tell(request: Request, names: tuple[str, ...], form: str) -> int:
    """The command's exit code. Raises UsageFault on an unknown chip, before anything is compiled."""
    from detente.session.on_chips import plan_on_chips
    from detente.session.underway import Stopped

    chips = tuple(find_chip(name) for name in dict.fromkeys(names))
    sink, lines = progress_sink(), []
    try:
        for cell, evidence in plan_on_chips(request, chips, sink):
            lines += lines_of(cell, evidence)
    except Stopped:
        say("interrupted; the plans that were made are kept", error=True)
        return 130
    finally:
        sink.close()
    if form == "json":
        rows = [
            {
                **{"workload": x.cell.workload, "size": x.cell.size, "contract": x.cell.contract.name},
                **{"precision": x.cell.contract.precision, "stack": x.cell.stack, "form": x.form},
                **{"chip": x.chip.name, "capacity": x.chip.memory, "status": x.status, "reason": x.reason},
                **{"plan": x.plan, "fits": x.fits},
            }
            for x in lines
        ]
        print(json.dumps({"schema": "detente/fits-chips/1", "rows": rows}))
    else:
        head, *rest = _rows(lines)
        for line in columns(head, rest, form):
            say(line)
        print(
            "\npeak: what the chip's own compiler plans to hold at once: weights, optimizer state, activations, "
            "scratch; nothing was run"
        )
    if not any(x.plan for x in lines):
        return 3
    return 1 if any(x.fits is False for x in lines) else 0


def lines_of(cell: Cell, evidence: Evidence) -> list[OnChip]:
    """A line of each form of a row."""
    chip = CHIPS[cell.device]
    plans: dict[str, dict[str, int]] = {}
    for key, value in evidence.memory.items():
        name, _, label = key.rpartition(":")
        plans.setdefault(name, {})[label] = value
    if not plans:
        return [OnChip(cell, chip, "", {}, evidence.status, evidence.reason)]
    return [OnChip(cell, chip, name, plan, evidence.status, evidence.reason) for name, plan in plans.items()]


def _rows(lines: list[OnChip]) -> list[tuple[str, ...]]:
    """A head, and a row of each."""
    from detente.report.numbers import BYTES, quantity

    rows: list[tuple[str, ...]] = [
        (
            "workload",
            "size",
            "contract",
            "row",
            "chip",
            "arguments",
            "temporary",
            "peak",
            "of",
            "compiled",
            "fits",
        )
    ]
    for x in lines:
        sizes = (quantity(x.plan.get(label), BYTES) for label in ("arguments", "temporary", "peak"))
        seconds = f"{x.plan['ms'] / 1000:.1f} s" if "ms" in x.plan else ""
        no = f"no: {x.reason}" if x.reason else "no"
        said = {True: "yes", False: no, None: f"{x.status}: {x.reason}"}[x.fits]
        contract = f"{x.cell.contract.name} {x.cell.contract.precision}"
        row = f"{x.cell.label} {x.form}".strip()
        rows.append(
            (
                *(x.cell.workload, x.cell.size, contract, row, x.chip.name),
                *(*sizes, quantity(x.chip.memory, BYTES), seconds, said),
            )
        )
    return rows
