"""A model that is too large for an fp64 reference: proved with two of every kind of layer, and held to its losses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted_sessions import ERRORS, loud, make_session, row

from detente.judge import judge
from detente.records.evidence import Evidence
from detente.records.session import Process, Session
from detente.report.compose import _proof

CUT = "paper,layers=2"


def unreferenced(losses: tuple[float, ...] = (11.0, 10.9, 10.8), proof: Evidence | None = None) -> Session:
    """A session in which nothing was held against a reference at the timed size; ``losses`` are jax's. Each row has its
    proof at ``CUT``."""
    session = make_session()
    processes = []
    for p in session.processes:
        evidence = p.evidence
        if p.kind == "time":
            window = evidence.window
            evidence = replace(
                evidence, errors=(), window=window and replace(window, errors=(), proved=0, replays=())
            )
            if p.cell.label == "jax":
                evidence = replace(evidence, losses=losses)
        processes.append(replace(p, evidence=evidence))
    cells = {c.label: c for c in session.planned if not c.label.endswith("#aa")}
    for cell in cells.values():
        found = proof if proof is not None and cell.label == "jax" else Evidence("ok", "done", errors=ERRORS)
        processes.append(Process(replace(cell, size=CUT), "prove", -1, 0, 1.0, 9.0, 0.01, found))
    return replace(session, processes=tuple(processes))


def test_its_proof_is_at_another_size_and_the_row_says_so() -> None:
    result = judge(unreferenced())
    for label in ("torch-eager", "jax", "torch-eager#aa"):
        parity = row(result, label).parity
        assert parity is not None and row(result, label).status == "ok"
        assert (parity.same_function, parity.same_precision) == ("passed", "passed")
        assert parity.precision_at == CUT and parity.tensors == len(ERRORS)
        assert _proof(row(result, label)) == (f"proved at {CUT}", "warn")
        if label != "torch-eager#aa":  # the twin is not audited
            unchecked = {f.rule for f in row(result, label).findings if f.severity == "unchecked"}
            assert unchecked == {"window-not-proved"}


@pytest.mark.parametrize(
    ("losses", "void"),
    [
        ((11.0, 10.9, 10.8), False),
        ((11.0005, 10.9, 10.8), False),  # 5e-5 of it
        ((11.01, 10.9, 10.8), True),
        ((11.0, 10.9, 10.82), True),
        ((11.0, float("nan"), 10.8), True),
    ],
)
def test_other_losses_than_the_first_row_s_are_void(losses: tuple[float, ...], void: bool) -> None:
    found = loud(judge(unreferenced(losses)), "jax")
    assert ("losses-apart" in found) == void
    if void:
        assert found["losses-apart"].severity == "void"


def test_a_proof_that_fails_there_makes_the_row_void() -> None:
    wrong = tuple(replace(e, err=e.rms) if e.kind == "gradient" else e for e in ERRORS)
    found = loud(judge(unreferenced(proof=Evidence("ok", "done", errors=wrong))), "jax")
    assert "not-the-same-function" in found


def test_a_row_that_has_a_reference_is_not_held_to_its_losses() -> None:
    session = make_session(plant={"jax": lambda e: replace(e, losses=(11.4, 10.9, 10.8))})
    assert "losses-apart" not in loud(judge(session), "jax")


def test_other_work_behind_a_hand_out_is_seen_without_a_reference() -> None:
    session = unreferenced()
    slow = []
    for p in session.processes:
        window, process = p.evidence.window, p
        if p.kind == "time" and p.cell.label == "jax" and window is not None:
            after = {h.at for h in window.hand_outs}
            samples = tuple(
                replace(s, wall_ns=2 * s.wall_ns, cpu_ns=2 * s.cpu_ns) if i in after else s
                for i, s in enumerate(p.evidence.samples)
            )
            process = replace(p, evidence=replace(p.evidence, samples=samples))
        slow.append(process)
    assert "handout-is-a-tell" in loud(judge(replace(session, processes=tuple(slow))), "jax")
