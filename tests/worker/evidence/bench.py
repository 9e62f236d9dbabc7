"""What both frameworks' truths stand on: a stack that was opened as a timing worker opens it, and a table of truths.

A truth runs a probe on the fair stack, changes what the probe is about, and runs it again. Framework-free; run in a
process of its own, one framework each.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.job import Job
from detente.records.sample import Sample
from detente.worker.events import Events
from detente.worker.opened import Opened, open_job
from detente.worker.probes import run_probes

SAMPLES = (Sample(60_000_000, 10, 60_000_000),) * 5
Truth = Callable[["Bench"], tuple[Any, Any]]


class Bench:
    """``opened`` by contract; each kept, because building one costs seconds."""

    def __init__(self, stack: str, prepared: str) -> None:
        self.stack, self.prepared = stack, prepared
        self._opened: dict[str, Opened] = {}

    def opened(self, contract: str = "train-step") -> Opened:
        if contract not in self._opened:
            cell = Cell("ffn", "tiny", self.stack, CONTRACTS[contract], "cpu", self.stack)
            folder = Path(self.prepared) / contract
            job = Job("time", cell, 1, str(folder), str(folder), str(folder / "cache"), threads=1)
            opened = open_job(job, Events(os.dup(2)))
            for batch in opened.placed[:3]:
                opened.running.loss(opened.running.step(batch))
            self._opened[contract] = opened
        return self._opened[contract]

    def probe(self, name: str, opened: Opened | None = None) -> Any:
        """The finding of one probe, under its own key."""
        found = run_probes((name,), opened or self.opened(), SAMPLES)
        if "error" in (found.get(name) or {}):
            raise AssertionError(found[name]["error"])
        return found

    def with_running(self, contract: str = "train-step", **methods: Any) -> Opened:
        """The opened stack with methods of its running replaced. Each gets the honest running first."""
        honest = self.opened(contract)
        running = Changed(honest.running, methods)
        changed = replace(honest, running=running)
        changed.__dict__.pop("done", None)
        changed.__dict__.pop("captures", None)
        return changed


class Changed:
    """A running of which some methods do something else."""

    def __init__(self, honest: Any, methods: dict[str, Callable[..., Any]]) -> None:
        self._honest, self._methods = honest, methods

    def __getattr__(self, name: str) -> Any:
        method = self._methods.get(name)
        if method is None:
            return getattr(self._honest, name)
        return lambda *arguments: method(self._honest, *arguments)


def tell(stack: str, prepared: str, truths: dict[str, Truth]) -> None:
    """Run every truth; print (fair, changed) of each, or what went wrong."""
    bench, found = Bench(stack, prepared), {}
    for key, truth in truths.items():
        try:
            fair, changed = truth(bench)
            found[key] = {"fair": fair, "changed": changed}
        except Exception:
            found[key] = {"error": traceback.format_exc()[-1500:]}
    print("TOLD " + json.dumps(found), flush=True)
