"""What a row was planned to hold, from the cache."""

from __future__ import annotations

from pathlib import Path

from detente.records.cell import Cell
from detente.session.proofs import proof_file, read_proof


def plan_file(cell: Cell) -> Path:
    """Where a row's plan is cached: named by what a proof of it would depend on, and this is no more."""
    proof = proof_file(cell)
    return proof.parent.parent / "plans" / proof.name


def known_plan(cell: Cell) -> dict[str, int]:
    """The labels of a row's plan, where one was made; empty where none was."""
    process = read_proof(plan_file(cell))
    return process.evidence.memory if process is not None else {}
