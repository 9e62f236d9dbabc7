"""Prepare a workload at size tiny in fp32: ``python own_errors.py WORKLOAD CONTRACT FOLDER``; prints the kinks, and
the own relative errors of the reference, of the three steps and of the window.

A process of its own: the prepare job sets torch's global switches, which a test run may not.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from detente.records.cell import Cell
from detente.records.codec import to_json
from detente.records.contract import CONTRACTS
from detente.records.job import Job
from detente.worker.events import Events
from detente.worker.jobs import prepare
from detente.worker.prepared import read_kinks
from detente.worker.reference import map_reference, reference_name, window_name


def main(name: str, region: str, folder: Path) -> None:
    contract = replace(CONTRACTS[region], feed="resident")
    cell = Cell(name, "tiny", "torch-eager", contract, "cpu", "torch-eager")
    job = Job("prepare", cell, seed=3, prepared=str(folder), artefacts="", cache="", threads=1, batches=3)
    prepare.run(job, Events(os.open(os.devnull, os.O_WRONLY)))
    told = {"kinks": to_json(read_kinks(folder))}
    for key, stem in (("three", reference_name(contract)), ("window", window_name(contract))):
        entries = map_reference(folder, stem).entries
        told[key] = {name: err / size if size else 0.0 for name, (_, size, err) in entries.items()}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
