"""The stages before anything is timed: level-one proofs, and the weights and references that the rows load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from detente.records.cell import Cell
from detente.records.codec import dumps, from_json
from detente.records.session import Process
from detente.session.proofs import proof_file
from detente.session.underway import Underway, is_twin
from detente.workloads.catalogue import find_workload


def prove(under: Underway, cells: Sequence[Cell]) -> None:
    """Level one: same function, at size tiny in fp64, once per workload, stack and versions, then cached."""
    for cell in cells:
        if "tiny" not in find_workload(cell.workload).sizes or is_twin(cell):
            continue
        proof = proof_cell(cell)
        if any(p.kind == "prove" and p.cell == proof for p in under.ledger.session.processes):
            continue
        cached = proof_file(proof)
        if cached.exists():
            under.ledger.keep(from_json(Process, json.loads(cached.read_text())))
            continue
        _prepare_for(under, proof)
        process = under.process("prove", proof, full_proof=True)
        under.ledger.keep(process)
        if process.evidence.status == "ok":
            cached.parent.mkdir(parents=True, exist_ok=True)
            cached.write_text(dumps(process))


def proof_cell(cell: Cell) -> Cell:
    """The cell at which a row's function is proved."""
    contract = replace(cell.contract, precision="fp64", feed="resident")
    return Cell(cell.workload, "tiny", cell.stack, contract, "cpu", cell.label)


def prepare(under: Underway, cells: Sequence[Cell]) -> None:
    """Make the weights, batches and references that the cells load, unless they are there."""
    for cell in cells:
        _prepare_for(under, cell)


def _prepare_for(under: Underway, cell: Cell) -> None:
    maker = under.workers.maker(cell)
    if maker is None:
        return
    process = under.process("prepare", maker)
    if process.evidence.status != "ok":
        under.tally.say(f"the reference of {cell.workload} could not be made: {process.evidence.reason}")
