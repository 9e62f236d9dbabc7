"""The stages before anything is timed: level-one proofs, and the weights and references that the rows load."""

from __future__ import annotations

from collections.abc import Sequence

from detente.records.cell import Cell
from detente.session.beside import run_beside
from detente.session.layout import is_twin
from detente.session.proofs import keep_proof, proof_file, read_proof
from detente.session.underway import Underway
from detente.workloads.catalogue import find_size, find_workload


def prove(under: Underway, cells: Sequence[Cell]) -> None:
    """Level one: same function, at a small size in fp64, once per workload, stack and versions, then cached. Proofs of
    different rows run beside each other: nothing is timed yet."""
    wanted: list[Cell] = []
    for cell in cells:
        proof = proof_cell(cell)
        if proof is None or is_twin(cell):
            continue
        session = under.ledger.session
        if session.every(proof, "prove") and not session.to_run_again(proof, "prove"):
            continue
        cached = proof_file(proof)
        known = read_proof(cached)
        if known is not None:
            under.ledger.keep(known)
        elif _prepare_for(under, proof):
            wanted.append(proof)
    for process in run_beside(under, "prove", wanted, full_proof=True):
        under.ledger.keep(process)
        if process.evidence.status == "ok" and (note := keep_proof(proof_file(process.cell), process)):
            under.tally.say(note)


def proof_cell(cell: Cell) -> Cell | None:
    """The cell at which a row's function is proved; None where nothing can be held against it."""
    workload = find_workload(cell.workload)
    size = workload.proved_at(find_size(workload, cell.size))
    if not size:
        return None
    contract = cell.contract.resident().at("fp64")
    return Cell(cell.workload, size, cell.stack, contract, "cpu", cell.label)


def prepare(under: Underway, cells: Sequence[Cell]) -> None:
    """Make the weights, batches and references that the cells load, unless they are there. A cell for which they cannot
    be made is failed by that one reason, and no process of it starts."""
    gone = under.ledger.session.dead()
    for cell in cells:
        if cell.key not in gone and not _prepare_for(under, cell):
            under.ledger.keep(under.unmade.process(cell, under.workers.folder(cell)))


def _prepare_for(under: Underway, cell: Cell) -> bool:
    """Whether what the cell loads is there now. Tried once: what fails for one row fails for all of its workload."""
    maker = under.workers.maker(cell)
    if maker is None:
        return True
    folder = under.workers.folder(cell)
    if not under.unmade.knows(cell, folder):
        process = under.process("prepare", maker)
        if process.evidence.status == "ok":
            return True
        under.unmade.add(cell, folder, process.evidence, under.workers.log)
    return False
