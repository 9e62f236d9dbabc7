"""Which blocks count."""

from __future__ import annotations

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.evidence import Evidence
from detente.records.session import Fingerprint, Process, Session

A, B = (Cell("gemm", "tiny", s, CONTRACTS["forward"], "cpu", s) for s in ("torch-eager", "jax"))


def process(cell: Cell, block: int, status: str = "ok") -> Process:
    return Process(cell, "time", block, 0, 0.0, 1.0, 0.0, Evidence(status, "done"))  # type: ignore[arg-type]


def session(*processes: Process, skipped: dict[str, str] | None = None) -> Session:
    return Session("s", 0.0, (), Fingerprint({}, {}, ""), (A, B), skipped or {}, None, processes)


def test_a_block_counts_only_when_whole() -> None:
    assert session(process(A, 0), process(B, 0), process(A, 1)).whole_blocks() == (0,)


def test_a_skipped_cell_is_not_waited_for() -> None:
    assert session(process(A, 0), skipped={B.key: "not installed"}).whole_blocks() == (0,)


def test_a_dead_cell_holds_no_block_up_and_stays_planned() -> None:
    found = session(process(A, 0), process(B, 0, "oom"), process(A, 1))
    assert found.whole_blocks() == (0, 1)
    assert found.dead() == {B.key} and B in found.planned


def test_nothing_runnable_makes_no_block() -> None:
    assert session(process(A, 0, "failed"), process(B, 0, "failed")).whole_blocks() == ()
