"""An arm is part of a cell's name and of nothing else; what is no arm is refused where it is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detente.records.arm import NO_ARM, Arm, arm_of, read_arm
from detente.records.cell import Cell
from detente.records.codec import SchemaError, from_json, to_json
from detente.records.contract import CONTRACTS
from detente.records.fault import UsageFault
from detente.session.layout import lay_out
from detente.session.request import Request

PLAIN = Cell("gpt2", "tiny", "jax", CONTRACTS["train-step"], "cpu", "jax")
OFF = arm_of({"donation": "off"})
UNDER = replace(PLAIN, arm=OFF, label="jax[donation=off]")

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
SETTINGS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)


@given(st.dictionaries(NAMES, SETTINGS, max_size=4))
def test_an_arm_is_read_back_from_its_name_and_from_json(settings: dict[str, str]) -> None:
    arm = arm_of(settings)
    assert read_arm(arm.label("jax")) == ("jax", arm)
    assert from_json(Arm, to_json(arm)) == arm
    assert Arm(tuple(reversed(arm.settings))) == arm


def test_a_cell_without_an_arm_is_called_as_before() -> None:
    assert PLAIN.key == "gpt2/tiny/train-step/fp32/cpu/jax" and PLAIN.arm is NO_ARM
    assert not NO_ARM and NO_ARM.label("jax") == "jax"


def test_a_cell_under_an_arm_has_a_key_of_its_own_and_shares_the_group() -> None:
    assert UNDER.key == "gpt2/tiny/train-step/fp32/cpu/jax[donation=off]"
    assert UNDER.group == PLAIN.group and from_json(Cell, to_json(UNDER)) == UNDER


def test_a_cell_that_an_older_version_wrote_has_no_arm() -> None:
    old = {k: v for k, v in to_json(PLAIN).items() if k != "arm"}
    assert from_json(Cell, old) == PLAIN


@pytest.mark.parametrize(
    "settings",
    [
        [["donation", "off"], ["donation", "on"]],
        [["Donation", "off"]],
        [["program", "a+b"]],
        [["program", "x,y"]],
        [["donation", ""]],
    ],
)
def test_what_no_key_can_hold_is_no_arm(settings: list[list[str]]) -> None:
    with pytest.raises(SchemaError, match=r"Cell\.arm"):
        from_json(Cell, {**to_json(UNDER), "arm": {"settings": settings}})


def test_a_row_that_hides_its_arm_is_no_cell() -> None:
    with pytest.raises(SchemaError, match="not called after its arm"):
        from_json(Cell, {**to_json(UNDER), "label": "jax"})


@pytest.mark.parametrize("named", ["jax[]", "jax[donation]", "jax[donation=off+donation=off]", "jax[=off]"])
def test_brackets_that_hold_no_arm_are_a_usage_fault(named: str) -> None:
    with pytest.raises(UsageFault, match="names no arm"):
        read_arm(named)


def test_stacks_are_laid_out_under_the_arms_that_they_are_named_with() -> None:
    asked = ("jax", "jax[donation=off]", "jax[donation=off]", "torch-eager")
    layout = lay_out(Request(("gemm",), asked, size="tiny"))
    assert [(c.label, c.stack, c.arm) for c in layout.cells] == [
        ("jax", "jax", NO_ARM),
        ("jax[donation=off]", "jax", OFF),
        ("jax[donation=off]#2", "jax", OFF),
        ("torch-eager", "torch-eager", NO_ARM),
        ("jax#aa", "jax", NO_ARM),
    ]
    assert len({c.key for c in layout.cells}) == 5
