"""The matrix: which cells a request means, and which of them cannot run here, each with its reason."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from detente.environments import python_of
from detente.records.arm import NO_ARM, Arm, read_arm
from detente.records.cell import Cell
from detente.records.contract import CONTRACTS, Contract
from detente.records.fault import UsageFault
from detente.records.nearest import did_you_mean
from detente.records.precision import NAMED, PRECISIONS
from detente.records.session import TWIN
from detente.session.request import Request, check_ranges
from detente.stacks.catalogue import STACKS, StackEntry, find_entry
from detente.stacks.factors import check_settings, environment_of
from detente.workloads.catalogue import find_size, find_workload, is_own
from detente.workloads.workload import Size, Workload

# What `--contract` says for "the recipe that the framework's own documentation shows, beside its best one".
OUT_OF_THE_BOX = "out-of-the-box"


@dataclass(frozen=True)
class Layout:
    """``cells`` is everything planned, in display order, the A/A twins included; ``skipped`` maps a cell's key to
    the reason; ``aa`` names the two labels of the A/A pair."""

    cells: tuple[Cell, ...]
    skipped: dict[str, str]
    aa: tuple[str, str] | None

    def alike(self, cell: Cell) -> list[Cell]:
        """The cells of the same row, its A/A twin among them."""
        own = (cell.stack, cell.arm, cell.group)
        return [c for c in self.cells if (c.stack, c.arm, c.group) == own]

    def runnable(self) -> tuple[Cell, ...]:
        return tuple(c for c in self.cells if c.key not in self.skipped)


def lay_out(request: Request) -> Layout:
    """Raises UsageFault on an unknown workload, stack, size, contract or precision, with the nearest name."""
    if not request.workloads:
        raise UsageFault("no workload was named", "`detente workloads` lists them: detente compare gpt2")
    check_ranges(request)
    if request.precision not in NAMED:
        raise UsageFault(f"no precision is called {request.precision!r}", f"there are {', '.join(NAMED)}")
    usual = request.contract == OUT_OF_THE_BOX
    asked = [read_arm(n) for n in request.stacks]
    entries = [find_entry(n) for n, _ in asked] or [
        e for e in STACKS.values() if e.default or (usual and e.recipe == OUT_OF_THE_BOX)
    ]
    arms = [arm for _, arm in asked] or [NO_ARM] * len(entries)
    for arm in arms:
        check_settings(arm)
    labels = _labels(entries, arms)
    cells: list[Cell] = []
    skipped: dict[str, str] = {}
    aa: tuple[str, str] | None = None
    for name in dict.fromkeys(request.workloads):
        workload = find_workload(name)
        size = find_size(workload, request.size)
        contract = _contract(workload, request)
        rows = list(zip(labels, entries, arms, strict=True))
        why_not = {label: missing_reason(e, a) or _no_definition(workload, e, size) for label, e, a in rows}
        if is_own(name) and not request.stacks:
            # Nobody asked for the rows that a model has no definition for.
            rows = [r for r in rows if r[1].definition in workload.definitions]
        twin = next((r for r in rows if not why_not[r[0]]), None) if request.aa else None
        if twin is not None:
            aa = (twin[0], twin[0] + TWIN)
            rows.append((aa[1], *twin[1:]))
            why_not[aa[1]] = ""
        for label, entry, arm in rows:
            cell = Cell(name, size.name, entry.name, contract, request.device, label, arm)
            cells.append(cell)
            if why_not[label]:
                skipped[cell.key] = why_not[label]
    return Layout(tuple(cells), skipped, aa)


def _labels(entries: list[StackEntry], arms: list[Arm]) -> list[str]:
    """A row that is named twice gets ``#2`` the second time; one under an arm has it in brackets. One of the user's own
    is labelled by its class, with its file where another's class is called the same, or one of our stacks is: history
    would take a class ``jax`` for JAX. The path stays in ``stack``."""
    own = {e.name: e.name.rpartition(":") for e in entries if ".py:" in e.name}
    classes = Counter(name for _, _, name in own.values())
    seen: Counter[str] = Counter()
    labels = []
    for entry, arm in zip(entries, arms, strict=True):
        name = entry.name
        if name in own:
            file, _, kind = own[name]
            alone = classes[kind] == 1 and kind not in STACKS
            name = kind if alone else f"{Path(file).stem}:{kind}"
        name = arm.shown(name)
        seen[name] += 1
        labels.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return labels


def _contract(workload: Workload, request: Request) -> Contract:
    name = request.contract or workload.contracts[0]
    if name == OUT_OF_THE_BOX:
        # No region of its own: the workload's first contract, run by the usual recipes too. Those rows carry the name.
        name = workload.contracts[0]
    if name not in CONTRACTS:
        raise UsageFault(
            f"no contract is called {name!r}" + did_you_mean(name, (*CONTRACTS, OUT_OF_THE_BOX)),
            f"there are {', '.join((*CONTRACTS, OUT_OF_THE_BOX))}",
        )
    if name not in workload.contracts:
        raise UsageFault(
            f"{workload.name} has no contract {name!r}", f"it has {', '.join(workload.contracts)}"
        )
    if request.loader_workers and request.feed != "loader":
        raise UsageFault(
            f"{request.loader_workers} loader workers, and the batches are {request.feed}",
            "workers read for a loader: add --feed loader",
        )
    asked = CONTRACTS[name].at(request.precision)
    able = PRECISIONS[request.precision].regions
    if asked.region not in able:
        raise UsageFault(
            f"{name} at {request.precision}: nothing is trained whose weights have bf16's three digits, an update of a "
            "thousandth would be lost",
            f"--contract {' or '.join(able)}; or --precision bf16, which keeps float32 weights",
        )
    return replace(asked, feed=request.feed, loader_workers=request.loader_workers)


def _no_definition(workload: Workload, entry: StackEntry, size: Size) -> str:
    if entry.definition not in workload.definitions and workload.name not in entry.defines:
        # A stranger's model is of one framework, and knows nothing of a definition in the other.
        pair = ": a pair names a function of each, by comma" if is_own(workload.name) else ""
        return f"{workload.name} has no definition in {entry.definition}{pair}"
    if entry.layers and workload.layers(size) < 2:
        return f"{workload.name} has no repeated layers to scan"
    return ""


def python_for(entry: StackEntry, arm: Arm = NO_ARM) -> Path | None:
    """The interpreter that runs a row's workers, or None when its environment has not been made."""
    environment = environment_of(entry.environment, arm)
    return Path(sys.executable) if environment == "default" else python_of(environment)


@functools.cache
def _has_module(python: str, module: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec(module) is not None
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-P", "-c", code], check=False, timeout=60).returncode == 0


def missing_reason(entry: StackEntry, arm: Arm = NO_ARM) -> str:
    """Why a row cannot run here, with the command that mends it; empty when it can. Imports nothing."""
    python, environment = python_for(entry, arm), environment_of(entry.environment, arm)
    if python is None:
        return f"not installed: `detente stacks add {environment}` makes its environment"
    absent = [m for m in entry.requires if not _has_module(str(python), m)]
    if not absent:
        return ""
    mend = (
        "pip install 'detente[stacks]'" if environment == "default" else f"detente stacks add {environment}"
    )
    return f"not installed: no module {', '.join(absent)}; `{mend}`"


def is_twin(cell: Cell) -> bool:
    """Whether this row is a stack's second name, of the A/A pair."""
    return cell.label.endswith(TWIN)
