"""Rows of a whole session: what is void, unproved or did not do what it says has no figures here."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from detente.explain.arm_effects import arm_effects
from detente.explain.causes import switched_off
from detente.explain.pair import Explanation, explain_pair
from detente.explain.rows import rows_of
from detente.judge import judge
from detente.records.arm import NO_ARM, arm_of
from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.records.session import Process, Session
from detente.records.verdict import Verdict
from tests.judge.planted_sessions import Change, make_session, probe

OFF, UNFUSED = arm_of({"donation": "off"}), arm_of({"fusion": "off"})
BUILT = {"executables": 1, "kernels": 300, "products": 10, "loops": 0, "alias_bytes": 1 << 20, "program": "a"}
JAX, STEP = ("jax", NO_ARM), 0.100
NAMES = {"jax#1": ("jax[donation=off]", OFF), "jax#2": ("jax[fusion=off]", UNFUSED)}


def session(
    undonated: Change | None = None,
    kernels: int = 900,
    steps: tuple[float, float] = (1.1, 2.0),
    blocks: int = 8,
    **planted: float,
) -> Session:
    """jax, its twin, and two arms of it that take ``steps`` times as long; ``kernels``: those without fusion."""
    times = {"jax": STEP, **{x: STEP * s for x, s in zip(NAMES, steps, strict=True)}}
    plant = {"jax#1": undonated} if undonated else None
    made = make_session(blocks, steps=times, plant=plant, **planted)  # type: ignore[arg-type]
    given = {label: (name, arm) for label, (name, arm) in NAMES.items()}

    def under(cell: Cell) -> Cell:
        name, arm = given.get(cell.label, (cell.label, NO_ARM))
        return replace(cell, label=name, arm=arm)

    cells = tuple(under(c) for c in made.planned)
    built = {
        NO_ARM: BUILT,
        OFF: {**BUILT, "alias_bytes": 0},
        UNFUSED: {**BUILT, "kernels": kernels},
    }
    captures = tuple(
        Process(c, "capture", -1, 0, 1.0, 1.0, 0.0, Evidence("ok", "done", probes={"built": built[c.arm]}))
        for c in cells
        if not c.label.endswith("#aa")
    )
    return replace(
        made,
        planned=cells,
        processes=(*captures, *(replace(p, cell=under(p.cell)) for p in made.processes)),
    )


def group(made: Session) -> str:
    return made.planned[0].group


def test_rows_under_arms_have_figures_and_the_twin_is_no_row() -> None:
    made = session()
    found = rows_of(made, group(made))
    assert found.medians.keys() == {JAX, ("jax", OFF), ("jax", UNFUSED)} and not found.refused
    assert len(found.twins[JAX]) == 8 and found.noise is not None and found.noise < 0.05
    effects = {e.factor: e for e in arm_effects(found)}
    assert {e.state for e in effects.values()} == {"measured"}
    assert 1.9 < effects["fusion"].effect.ratio < 2.1  # type: ignore[union-attr]


def test_what_an_arm_is_for_is_no_fault_of_it_and_all_else_is() -> None:
    undonated = probe("program", alias_bytes=0)
    made = session(undonated)
    assert ("jax", OFF) in rows_of(made, group(made)).medians
    # The same program without the arm is void, and so is an arm that has a fault beside.
    assert (
        "state-not-donated"
        in rows_of(make_session(plant={"jax": undonated}), group(make_session())).refused[JAX]
    )
    wrong = session(probe("program", flops=1.0))
    assert "void" in rows_of(wrong, group(wrong)).refused["jax", OFF]


def test_what_is_asked_about_is_no_reason_to_say_nothing() -> None:
    """`detente explain` called a row that donates nothing void, and had no bar for the donation that it lacks."""
    made = make_session(plant={"jax": probe("program", alias_bytes=0)})
    found = rows_of(made, group(made), "jax", ["donation"])
    assert JAX in found.medians and "state-not-donated" in found.despite[JAX]
    # Another factor, another stack, or a fault beside it: as before.
    for stack, lacks in (("jax", []), ("torch-eager", ["donation"]), ("jax", ["fusion"])):
        other = rows_of(made, group(made), stack, lacks)
        assert JAX not in other.medians and not other.despite
    worse = make_session(plant={"jax": probe("program", alias_bytes=0, flops=1.0)})
    assert "void" in rows_of(worse, group(worse), "jax", ["donation"]).refused[JAX]
    # A row with nothing wrong has nothing to say.
    fair = make_session()
    assert not rows_of(fair, group(fair), "jax", ["donation"]).despite


def test_an_arm_that_did_nothing_is_refused_with_the_figures() -> None:
    made = session(kernels=301)
    found = rows_of(made, group(made))
    assert "300 before, 301 under the arm" in found.refused["jax", UNFUSED]
    (explained,) = [explain_pair(found, switched_off("jax", ["fusion"]))]
    assert explained.waterfall is None and "300 before, 301" in explained.reason


def test_an_arm_that_nobody_checked_is_refused() -> None:
    made = session()
    unchecked = replace(made, processes=tuple(p for p in made.processes if p.kind != "capture"))
    assert "there is no captured program" in rows_of(unchecked, group(made)).refused["jax", UNFUSED]


def test_a_waterfall_of_a_session() -> None:
    made = session()
    found = explain_pair(rows_of(made, group(made)), switched_off("jax", ["fusion"]))
    assert found.waterfall is not None and found.verdict is not None and found.verdict.word == "SLOWER"
    (bar,) = found.waterfall.bars
    assert bar.cause == "fusion" and 0.45 < bar.effect.ratio < 0.55
    assert abs(found.waterfall.residual.mean) < 1e-9


def test_a_drifting_session_has_no_bars() -> None:
    made = session(twin=1.2)
    found = explain_pair(rows_of(made, group(made)), switched_off("jax", ["fusion"]))
    assert found.waterfall is None and "drifting" in found.reason


# What a comparison of the same session says ------------------------------------------------------------------------


def both(made: Session) -> tuple[Verdict, Explanation]:
    """The verdict of a report, and what is explained, of jax without fusion against jax."""
    said = {(v.a, v.b): v for v in judge(made).verdicts}
    found = explain_pair(rows_of(made, group(made)), switched_off("jax", ["fusion"]))
    return said["jax[fusion=off]", "jax"], found


@pytest.mark.parametrize("step", [1.0, 1.01, 1.03, 1.2])
@pytest.mark.parametrize("changes", [{}, {"foreign": 0.5}, {"twin": 1.04}], ids=str)
def test_a_session_has_one_word_for_a_pair(step: float, changes: dict[str, float]) -> None:
    """`report` said UNDECIDED, others used the machine, and `explain` that there is no gap."""
    made = session(steps=(1.1, step), **changes)
    reported, found = both(made)
    if found.verdict is None:
        assert reported.ratio is None and "drifting" in reported.reason and "drifting" in found.reason
    else:
        assert found.verdict == reported


def drifting_apart(blocks: int, by: float) -> Session:
    """One row goes away from the other, block by block."""

    one, *others = [
        session(steps=(1.1, math.exp(by * k / (blocks - 1))), blocks=blocks) for k in range(blocks)
    ]
    ran = zip(*(made.processes for made in (one, *others)), strict=True)
    return replace(one, processes=tuple(same[max(same[0].block, 0)] for same in ran))


def test_blocks_that_resemble_their_neighbours_settle_no_more_than_in_a_report() -> None:
    """The stored bound of their correlation was taken, whatever the session itself says."""
    made = drifting_apart(15, 0.12)
    reported, found = both(made)
    rows = rows_of(made, group(made))
    assert rows.rho is not None and rows.rho > 0.3 and rows.correlation == rows.rho
    assert found.verdict == reported and found.waterfall is None
    # Arms are as uncertain as verdicts.
    (arm,) = [e for e in arm_effects(rows) if e.factor == "fusion"]
    assert arm.state == "below noise"
    # Without the judge's word the rows are asked themselves.
    assert replace(rows, rho=None).correlation == pytest.approx(rows.rho)


def test_the_pair_that_a_session_was_measured_for_counts_alone() -> None:
    made = session()
    assert rows_of(made, group(made)).pairs == 3
    assert rows_of(made, group(made), asked_alone=True).pairs == 1


def test_a_factor_of_a_newer_version_costs_its_row_alone() -> None:
    """All of the session ended in an error: no factor is called 'tiling'."""
    made = session()
    newer = arm_of({"tiling": "off"})

    def under(cell: Cell) -> Cell:
        return replace(cell, label="jax[tiling=off]", arm=newer) if cell.arm == OFF else cell

    found = replace(
        made,
        planned=tuple(map(under, made.planned)),
        processes=tuple(replace(p, cell=under(p.cell)) for p in made.processes),
    )
    rows = rows_of(found, group(found))
    assert rows.medians.keys() == {JAX, ("jax", UNFUSED)}
    assert rows.refused["jax", newer] == "tiling=off is no factor of this version, which cannot check it"
    states = {e.row: e.state for e in arm_effects(rows)}
    assert states == {"jax[fusion=off]": "measured", "jax[tiling=off]": "dropped"}


def test_who_was_not_proved_is_known() -> None:
    made = make_session(8)
    assert not rows_of(made, group(made)).unproved
    bare = make_session(8, proofs=False)
    found = rows_of(bare, group(bare)).unproved
    assert found[JAX] == "not proved in float64 at a small size"
    errors = {"jax": lambda evidence: replace(evidence, errors=())}
    neither = make_session(8, proofs=False, plant=errors)
    assert "nor in the timed process" in rows_of(neither, group(neither)).unproved.get(JAX, "") or (
        rows_of(neither, group(neither)).unproved[JAX] == "nothing was proved"
    )
