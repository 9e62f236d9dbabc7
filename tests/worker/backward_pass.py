"""Prepare a workload at size tiny in fp64 and compare its stored gradients with a backward pass of their own:
``python backward_pass.py WORKLOAD FOLDER``; prints the names that either side has and the worst relative difference.

A process of its own: the prepare job sets torch's global switches, which a test run may not.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.job import Job
from detente.stacks.torch_eager import TorchEager
from detente.worker.events import Events
from detente.worker.jobs import prepare
from detente.worker.prepared import map_batches, map_weights
from detente.worker.reference import map_reference, reference_name
from detente.worker.sketch import sketch
from detente.workloads.catalogue import find_size, find_workload


def main(name: str, folder: Path) -> None:
    workload = find_workload(name)
    contract = replace(CONTRACTS[workload.contracts[0]].at("fp64"), feed="resident")
    cell = Cell(name, "tiny", "torch-eager", contract, "cpu", "torch-eager")
    job = Job("prepare", cell, seed=3, prepared=str(folder), artefacts="", cache="", threads=1, batches=3)
    prepared = prepare.run(job, Events(os.open(os.devnull, os.O_WRONLY)))
    stored = map_reference(folder, reference_name(contract)).sketches
    stack = TorchEager()
    stack.start("cpu", "fp64", 1)
    running = stack.build(workload, find_size(workload, "tiny"), contract)
    running.load(map_weights(folder))
    found = running.gradients(running.place(map_batches(folder)[0]))
    worst = 0.0
    for tensor, gradient in found.items():
        own = sketch(tensor, gradient)
        far = np.abs(stored[f"gradient|{tensor}"] - own).max()
        worst = max(worst, float(far / max(np.abs(own).max(), 1e-12)))
    told = {
        "status": prepared.status,
        "region": contract.region,
        "stored": sorted(k.removeprefix("gradient|") for k in stored if k.startswith("gradient|")),
        "found": sorted(found),
        "worst": worst,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
