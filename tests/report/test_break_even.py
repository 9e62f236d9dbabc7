"""When a faster step has paid for its slower start, in whole steps; and undecided rows keep their medians."""

from __future__ import annotations

from dataclasses import replace

import fabricated as f
import pytest

from detente.records.finding import Finding
from detente.records.result import CellResult
from detente.report.break_even import break_even, first_losses, steps_to_lead
from detente.report.compose import compose, groups_of
from detente.report.page import Statement, Table, plain_text
from detente.report.sentences import headline


def row(label: str, steady: float, first: float | None) -> CellResult:
    return replace(f.cell(label, steady), first_s=first)


def total(cell: CellResult, steps: int) -> float:
    assert cell.first_s is not None and cell.steady_s is not None
    return cell.first_s + (steps - 1) * cell.steady_s.median


@pytest.mark.parametrize(("late", "gain"), [(3.2, 0.21), (0.21, 0.21), (0.0, 0.5), (69.0, 0.2), (1e-3, 2.0)])
def test_it_is_ahead_after_that_many_steps_and_not_one_before(late: float, gain: float) -> None:
    fast, slow = row("jax", 1.0, 4.0 + late), row("torch-eager", 1.0 + gain, 4.0)
    steps = steps_to_lead(fast, slow)
    assert steps is not None and steps > 1
    assert total(fast, steps) < total(slow, steps)
    assert total(fast, steps - 1) >= total(slow, steps - 1) - 1e-9


def test_one_that_also_starts_sooner_leads_at_once() -> None:
    fast, slow = row("a", 1.0, 2.0), row("b", 2.0, 5.0)
    assert steps_to_lead(fast, slow) == 1
    said = break_even(fast, slow)
    assert said and plain_text(said).endswith("ahead of b from the first step.")


def test_without_a_gain_or_a_figure_nothing_is_said() -> None:
    assert steps_to_lead(row("a", 1.0, 2.0), row("b", 1.0, 5.0)) is None
    assert steps_to_lead(row("a", 2.0, 2.0), row("b", 1.0, 5.0)) is None
    assert break_even(row("a", 1.0, None), row("b", 2.0, 5.0)) is None
    for odd in (float("nan"), float("inf")):
        assert break_even(row("a", 1.0, odd), row("b", 2.0, 5.0)) is None


def test_nobody_is_ahead_by_a_step_that_nobody_compiled() -> None:
    """One kept its program in a folder of its own, and was "ahead of jax from the first step"."""
    kept = replace(
        row("b", 1.0, 2.0), findings=(Finding("cache-state-differs", "warn", "b", "no cold start"),)
    )
    cold = row("a", 2.0, 5.0)
    assert steps_to_lead(row("b", 1.0, 2.0), cold) == 1
    assert steps_to_lead(kept, cold) is None and break_even(kept, cold) is None
    told = first_losses((cold, kept))
    assert told and plain_text(told).endswith("b (no cold start was measured) 2.00 s, a 5.00 s.")
    unchecked = replace(kept, findings=(Finding("cache-state-differs", "unchecked", "b", "not checked"),))
    assert steps_to_lead(unchecked, cold) == 1


def said(*cells: CellResult, **verdict: object) -> list[str]:
    result = replace(f.undecided(), cells=cells, verdicts=(f.verdict("b", "a", **verdict),))  # type: ignore[arg-type]
    return [plain_text(s.words) for s in headline(result.session, groups_of(result)[0])]


def test_a_lead_cannot_read_undecided_medians_as_the_same() -> None:
    (text,) = said(
        row("a", 0.80, 7.0), row("b", 1.22, 2.0), word="UNDECIDED", ratio=None, blocks=1, needed=5, half=None
    )
    assert text == "Not decided: a 800 ms and b 1.22 s per step; 1 process each, a verdict needs 5."


def test_the_decided_pair_leads_with_its_price() -> None:
    first, second = said(row("a", 0.80, 5.2), row("b", 1.01, 2.0), word="SLOWER", ratio=1.26)
    assert first == "a is 1.26x faster than b."
    assert (
        second
        == "a takes 3.20 s longer to its first loss and 210 ms less per step: ahead of b after 17 steps."
    )


def test_rows_that_let_others_go_first_are_named_with_the_reason() -> None:
    whole = f.whole()
    why = "the budget of 720 s holds 5 blocks of a, b, not of all rows"
    cells = tuple(
        replace(
            c,
            reason=why,
            steady_s=replace(c.steady_s, processes=1),
        )
        if c.label == "jax-scan" and c.steady_s
        else c
        for c in whole.cells
    )
    parts = compose(replace(whole, cells=cells)).parts
    texts = [plain_text(p.words) for p in parts if isinstance(p, Statement)]
    assert (
        "jax-scan ran in 1 of 10 blocks: the budget of 720 s holds 5 blocks of a, b, not of all rows."
        in texts
    )


def test_an_own_model_says_why_it_is_not_wholly_proved() -> None:
    def said(workload: str, function: str) -> str:
        cell = row("a", 1.0, 2.0)
        assert cell.parity is not None
        cell = replace(cell, workload=workload, parity=replace(cell.parity, same_function=function))
        parts = compose(replace(f.undecided(), cells=(cell,), verdicts=())).parts
        return " ".join(plain_text(p.words) for p in parts if isinstance(p, Statement))

    assert "What is missing: the proof in fp64" in said("model.py:build", "not checked")
    assert "What is missing: the proof in fp64" in said("gpt2", "not checked")
    assert "Not wholly proved" not in said("gpt2", "passed")


@pytest.mark.parametrize(
    ("dims", "unit", "each"),
    [({"batch": 4, "sequence": 64}, "tokens/s", 256), ({"batch": 4}, "samples/s", 4), ({}, "samples/s", 0)],
)
def test_what_a_second_works_through_is_in_the_table(dims: dict[str, int], unit: str, each: int) -> None:
    """Tokens where the workload has sequences, else samples; no column where it says neither."""
    result = f.whole()
    (group,) = groups_of(result)
    workloads = {group.name: {"dims": dims}}
    fingerprint = result.session.fingerprint
    settings = {**fingerprint.settings, "workloads": workloads}
    session = replace(result.session, fingerprint=replace(fingerprint, settings=settings))
    tables = [
        t for t in _tables(compose(replace(result, session=session))) if {"steady", "proof"} <= {*_names(t)}
    ]
    if not each:
        assert not any("/s" in name for t in tables for name in _names(t)), "a column with nothing in it"
        return
    for table in tables:
        at = _names(table).index(unit)
        for row_of, cell in zip(table.rows, group.cells, strict=True):
            told = plain_text(row_of.cells[at])
            if cell.status != "ok" or cell.steady_s is None:
                assert told == "–", told
            else:
                assert float(told.replace(",", "")) == pytest.approx(each / cell.steady_s.median, rel=0.01)
    assert tables


def _names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _tables(part: object) -> list[Table]:
    """Every table of a page, however deep."""
    if isinstance(part, Table):
        return [part]
    if isinstance(part, list | tuple):
        return [t for one in part for t in _tables(one)]
    return [t for one in vars(part).values() for t in _tables(one)] if hasattr(part, "__dict__") else []
