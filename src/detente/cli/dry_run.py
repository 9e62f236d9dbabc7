"""``compare --dry-run``: the matrix, what it would cost, and what is missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from detente.cli.live import duration
from detente.records.cell import Cell
from detente.records.codec import to_json
from detente.records.folders import data_folder
from detente.records.verdict import LEAST_BLOCKS
from detente.report.columns import columns
from detente.report.numbers import count
from detente.session.budget import OVERTIME
from detente.session.devices import absent_reason
from detente.session.forecast import Cost, Memory, forecast, memory_of
from detente.session.known_plan import known_plan
from detente.session.layout import is_twin, lay_out
from detente.session.prepared import is_prepared, prepared_folder
from detente.session.request import Request
from detente.session.workers import BATCHES
from detente.stacks.catalogue import find_entry


@dataclass(frozen=True)
class Plan:
    """``blocks`` is exact where the user asked for so many, else the fewest that make a verdict. ``skipped`` maps a
    cell's key to why it would not run."""

    cells: tuple[Cell, ...]
    skipped: dict[str, str]
    aa: tuple[str, str] | None
    blocks: int
    exact: bool
    processes: int
    costs: dict[str, Cost]
    seconds: float
    memory: Memory
    prepared: bool
    budget_s: float | None

    @property
    def running(self) -> tuple[Cell, ...]:
        """The cells that would run."""
        return tuple(c for c in self.cells if c.key not in self.skipped)


def plan_of(request: Request) -> Plan:
    """The plan of a request. Runs nothing and imports no framework: whether a device is there is read from files."""
    layout = lay_out(request)
    skipped = dict(layout.skipped)
    for cell in layout.runnable():
        why = absent_reason(find_entry(cell.stack), request.device)
        if why:
            skipped[cell.key] = why
    cells = tuple(c for c in layout.cells if c.key not in skipped)
    blocks = request.blocks or 5
    rows = [c for c in cells if not is_twin(c)]
    memory = len(rows) if request.memory else 0
    costs = forecast(request, cells, data_folder() / "sessions")
    # A memory run takes about half of a later process: it builds and steps, and measures nothing.
    seconds = sum(c.blocks_s(blocks) for c in costs.values())
    seconds += sum(costs[c.key].later_s / 2 for c in rows) if memory else 0
    missing = [c for c in cells if not is_prepared(prepared_folder(c, request.seed, BATCHES), c.contract)]
    return Plan(
        layout.cells,
        skipped,
        layout.aa,
        blocks,
        request.blocks is not None,
        blocks * len(cells) + memory,
        costs,
        seconds,
        memory_of(cells),
        not missing,
        request.budget_s,
    )


def show_plan(request: Request, form: str) -> int:
    """Print the plan; 0, or 3 when nothing of it could run here."""
    plan = plan_of(request)
    if form == "json":
        print(json.dumps({"schema": "detente/plan/1", **document(plan)}))
    else:
        print("\n".join(told(plan, form)))
    return 0 if plan.running else 3


def document(plan: Plan) -> dict[str, Any]:
    """The JSON object of a plan, but for its schema's name."""
    return {
        "cells": [to_json(c) for c in plan.cells],
        "skipped": plan.skipped,
        "aa": plan.aa,
        "blocks": plan.blocks,
        "exact": plan.exact,
        "processes": plan.processes,
        "seconds": plan.seconds,
        "costs": to_json(plan.costs),
        "memory": to_json(plan.memory),
        "budget_s": plan.budget_s,
        "prepared": plan.prepared,
    }


def told(plan: Plan, form: str) -> list[str]:
    """The plan as lines of text or Markdown."""
    head = ("workload", "size", "contract", "precision", "device", "row", "what")
    rows = [
        (
            c.workload,
            c.size,
            c.contract.name,
            c.contract.precision,
            c.device,
            c.label,
            f"skipped: {plan.skipped[c.key]}" if c.key in plan.skipped else _cost(plan.costs[c.key]),
        )
        for c in plan.cells
    ]
    return [*columns(head, rows, form, headed=False), "", *_summary(plan)]


def _cost(cost: Cost) -> str:
    source = f"measured in {cost.source}" if cost.source else "a guess"
    return f"runs: {duration(cost.first_s)}, then {duration(cost.later_s)} a process ({source})"


def _summary(plan: Plan) -> list[str]:
    if not plan.running:
        return ["nothing of this can run here"]
    guessed = sum(not c.source for c in plan.costs.values())
    how = (
        "a guess: nothing like it was measured here yet" if guessed == len(plan.costs) else "as measured here"
    )
    if 0 < guessed < len(plan.costs):
        how = f"{guessed} of {len(plan.costs)} rows guessed"
    more = "" if plan.exact else " or more"
    lines = [
        f"{count(plan.blocks, 'block')}{more}, {count(plan.processes, 'process', 'processes')}, "
        f"roughly {duration(plan.seconds)} ({how})"
    ]
    if not plan.prepared:
        lines.append("the weights and the fp64 reference are made first")
    memory = plan.memory
    machine = f"this machine has {memory.total / 1e9:.3g} GB, {memory.free / 1e9:.3g} GB of them free"
    if memory.step is None or memory.reference is None:
        lines.append(f"memory: not known for a model of your own; {machine}")
    else:
        fits = "" if memory.fits else ": it does not fit"
        lines.append(
            f"memory: at least {memory.step / 1e9:.3g} GB a process and {memory.reference / 1e9:.3g} GB for the fp64 "
            f"reference, activations not counted; {machine}{fits}"
        )
    planned = [(c, p["planned_process"]) for c in plan.running if "planned_process" in (p := known_plan(c))]
    for cell, size in planned:
        lines.append(f"  {cell.workload} {cell.label}: a process is planned to hold {size / 1e9:.3g} GB")
    if len(planned) < len([c for c in plan.running if not is_twin(c)]):
        lines.append("  `detente fits` plans what each row will hold, activations too")
    if plan.budget_s:
        late = duration((1 + OVERTIME) * plan.budget_s)
        lines.append(
            f"no block starts that would end after {duration(plan.budget_s)}; of the first {LEAST_BLOCKS}, which a "
            f"verdict needs, none after {late}"
        )
        if plan.seconds > plan.budget_s and not plan.exact:
            lines.append(
                f"{plan.blocks} blocks of all rows do not fit into that: the first named and some others go first"
            )
    return lines
