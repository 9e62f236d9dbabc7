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
from detente.records.job import Job, Sampling
from detente.records.sample import Sample
from detente.worker.events import Events
from detente.worker.opened import Opened, open_job
from detente.worker.probes import run_probes
from detente.worker.window import Window

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
            self._opened[contract] = timed(opened)
        return self._opened[contract]

    def probe(self, name: str, opened: Opened | None = None) -> Any:
        """The finding of one probe, under its own key."""
        # What ``rotation`` compares a first step with is run by ``region``.
        names = ("region", name) if name == "rotation" else (name,)
        found = run_probes(names, opened or self.opened(), SAMPLES)
        if "error" in (found.get(name) or {}):
            raise AssertionError(found[name]["error"])
        return found

    def with_running(self, contract: str = "train-step", **methods: Any) -> Opened:
        """The opened stack with methods of its running replaced. Each gets the honest running first."""
        honest = self.opened(contract)
        running = Changed(honest.running, methods)
        changed = replace(honest, running=running)
        changed.__dict__.pop("captures", None)
        return timed(changed)


def timed(opened: Opened) -> Opened:
    """With three steps and a window behind it, as the probes find it in a timing worker."""
    running, batches = opened.running, opened.placed
    running.load(opened.weights)
    losses = [running.loss(running.step(batch)) for batch in batches[:3]]
    sampling = Sampling(block_s=0.001, samples=5, least=5, seconds=0.1)
    window = Window(running, opened.feed(3), 1, 0.001, sampling, (lambda: None, lambda: None))
    moves = opened.job.cell.contract.region == "train-step"
    if moves:
        window.make_room(hold=False)
    taken = window.of_state(1) if moves else window.of_outputs([])
    opened.done, opened.collector, opened.first_loss = taken.newest, taken.collector, losses[0]
    return opened


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
