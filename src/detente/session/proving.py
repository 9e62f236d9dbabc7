"""The stages before anything is timed: level-one proofs, and the weights and references that the rows load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detente.records.cell import Cell
from detente.records.job import JobKind
from detente.session.beside import run_beside
from detente.session.layout import is_twin
from detente.session.needed_memory import reference_bytes
from detente.session.prepared import has_weights
from detente.session.proofs import keep_proof, proof_file, read_proof
from detente.session.references import proved_instead
from detente.session.underway import Underway
from detente.session.unmade import never_timed
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
    return replace(cell, size=size, contract=contract, device="cpu")


def prepare(under: Underway, cells: Sequence[Cell]) -> None:
    """Make the weights, batches and references that the cells load, unless they are there. A cell for which they cannot
    be made is failed by that one reason, and no process of it starts."""
    gone = under.ledger.session.dead()
    for cell in cells:
        if cell.key in gone:
            continue
        cut = "" if under.workers.maker(cell) is None else proved_instead(cell)
        if cut:
            _prepare_cut(under, cell, cut)
        elif not _prepare_for(under, cell):
            under.ledger.keep(under.unmade.process(cell, under.workers.folder(cell)))


def _prepare_cut(under: Underway, cell: Cell, size: str) -> None:
    """Weights without a reference, and the proof of the row at another ``size``. Without it the row is not timed: it
    would be proved nowhere at its own precision."""
    proof = replace(cell, size=size, contract=cell.contract.resident())
    steps: tuple[tuple[Cell, JobKind], ...] = ((cell, "weights"), (proof, "prepare"))
    for wanted, kind in steps:
        if not _prepare_for(under, wanted, kind):
            under.ledger.keep(under.unmade.process(cell, under.workers.folder(wanted), of=wanted))
            return
    session = under.ledger.session
    if is_twin(cell) or (session.every(proof, "prove") and not session.to_run_again(proof, "prove")):
        return
    under.tally.say(
        f"{cell.workload} {cell.size}: an fp64 reference would take {reference_bytes(cell) / 1e9:.3g} GB, more than "
        f"this machine has; {cell.label} is proved at {size}"
    )
    process = under.process("prove", proof)
    under.ledger.keep(process)
    if process.evidence.status != "ok":
        told = f"its proof at {size} did not end well: {process.evidence.reason}"
        under.ledger.keep(never_timed(cell, replace(process.evidence, reason=told)))


def _prepare_for(under: Underway, cell: Cell, kind: JobKind = "prepare") -> bool:
    """Whether what the cell loads is there now: its reference, too, or with ``weights`` no more than these. Tried once:
    what fails for one row fails for all of its workload."""
    maker = under.workers.maker(cell)
    folder = under.workers.folder(cell)
    if maker is None or (kind == "weights" and has_weights(folder)):
        return True
    if not under.unmade.knows(cell, folder):
        process = under.process(kind, maker)
        if process.evidence.status == "ok":
            return True
        under.unmade.add(cell, folder, process.evidence, under.workers.log)
    return False
