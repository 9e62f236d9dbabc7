"""Rows that run another stack's program: what nobody else can run is skipped, before anything is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from detente.records.arm import arm_of
from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.evidence import Evidence
from detente.session import arms
from detente.session.arms import take_programs
from detente.session.layout import Layout


def cell(program: str | None, size: str = "tiny") -> Cell:
    arm = arm_of({"program": program}) if program else arm_of({})
    return Cell("gpt2", size, "jax", CONTRACTS["train-step"], "cpu", arm.label("jax"), arm)


def session(*cells: Cell) -> tuple[Any, dict[str, str]]:
    skipped: dict[str, str] = {}
    ledger = SimpleNamespace(skip=lambda rows, why: skipped.update({c.label: why for c in rows}))
    under = SimpleNamespace(
        layout=Layout(cells, {}, None),
        ledger=ledger,
        tally=SimpleNamespace(tell=lambda *a, **k: None),
        workers=SimpleNamespace(foreign={}, artefacts=SimpleNamespace(__truediv__=None)),
    )
    return under, skipped


def test_a_program_without_a_signature_is_nobody_elses() -> None:
    rows = (cell(None), cell("jax"), cell("detente"), cell("torch-eager"))
    under, skipped = session(*rows)
    assert take_programs(under, rows) == list(rows[:2])
    assert set(skipped) == {"jax[program=detente]", "jax[program=torch-eager]"}
    assert all("does not say what the arguments" in why for why in skipped.values())


def test_what_is_timed_and_what_is_proved_have_a_program_each(monkeypatch, tmp_path) -> None:
    asked: list[Cell] = []
    evidence = SimpleNamespace(
        status="ok",
        programs=[SimpleNamespace(form="hlo", path="h"), SimpleNamespace(form="signature", path="s")],
        probes={},
    )
    monkeypatch.setattr(arms, "prepare", lambda under, cells: None)
    monkeypatch.setattr(arms, "captured", lambda under, row: asked.append(row) or evidence)
    row = cell("torch-xla", "paper")
    under, skipped = session(row)
    under.workers.artefacts = tmp_path
    assert take_programs(under, [row]) == [row] and not skipped
    assert [(c.stack, c.size, c.contract.precision) for c in asked] == [
        ("torch-xla", "paper", "fp32"),
        ("torch-xla", "tiny", "fp64"),
    ]
    assert all(
        files == {"hlo": str(tmp_path / "h"), "signature": str(tmp_path / "s")}
        for files in under.workers.foreign.values()
    )
    assert len(under.workers.foreign) == 2


def test_a_capture_that_found_an_unknown_number_says_which(monkeypatch, tmp_path) -> None:
    evidence = Evidence("ok", "done", probes={"unsigned": "argument 7 is a number that changes"})
    monkeypatch.setattr(arms, "prepare", lambda under, cells: None)
    monkeypatch.setattr(arms, "captured", lambda under, row: evidence)
    row = cell("torch-xla")
    under, skipped = session(row)
    under.workers.artefacts = tmp_path
    assert take_programs(under, [row]) == []
    assert "argument 7 is a number that changes" in skipped["jax[program=torch-xla]"]


def test_the_rows_of_a_program_from_a_folder_can_be_kept() -> None:
    """A key is cut at slashes: a session whose capture was called after a path could not be read again."""
    from detente.records.arm import NO_ARM
    from detente.records.codec import from_json, to_json
    from detente.session.arms import row_of

    arm = arm_of({"program": "here/stacks.py:Mine"})
    under = Cell("gpt2", "tiny", "jax", CONTRACTS["train-step"], "cpu", arm.shown("jax"), arm)
    rows = (under, row_of(under, "here/stacks.py:Mine", NO_ARM), row_of(under, "jax", arm_of({})))
    for row in rows:
        assert "/" not in row.label and from_json(Cell, to_json(row)) == row
