"""Infinities and NaN of a right result: compared by their places, and by nothing else of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detente.judge.parity import first_difference, judge_tensors
from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.precision import PRECISIONS
from detente.records.tensor_error import NOT_FINITE
from detente.worker.probes import consumed
from detente.worker.reference import (
    Trace,
    make_reference,
    reference_name,
    state_trace,
    window_name,
    write_reference,
)
from detente.worker.sketch import WHOLE

CONTRACT = CONTRACTS["forward"]
SIZES = (10, WHOLE + 4096)


def outputs(**named: np.ndarray) -> Trace:
    return Trace((), named, {}, {}, {}, frozenset())


def logits(size: int, forbidden: slice = slice(3, 6)) -> np.ndarray:
    found = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    found[forbidden] = -np.inf
    return found


def differs(reference: Trace, run: Trace) -> str:
    errors = make_reference(reference).errors(run)
    found = first_difference(judge_tensors(errors, PRECISIONS["fp32"]))
    return "" if found is None else found.error.name


@pytest.mark.parametrize("size", SIZES)
def test_what_is_forbidden_on_both_sides_is_the_same(size: int) -> None:
    assert differs(outputs(logits=logits(size)), outputs(logits=logits(size))) == ""
    moved = logits(size)
    moved[0] += 1.0
    assert differs(outputs(logits=logits(size)), outputs(logits=moved)) == "logits"


def changed(size: int, at: int, value: float) -> np.ndarray:
    found = logits(size)
    found[at] = value
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("at", "value"),
    [(3, 0.0), (3, np.inf), (3, np.nan), (7, -np.inf), (7, np.nan)],
    ids=["allowed", "other sign", "no number", "one more", "one that is no number"],
)
def test_another_place_or_another_value_there_is_a_difference(size: int, at: int, value: float) -> None:
    assert differs(outputs(logits=logits(size)), outputs(logits=changed(size, at, value))) in (
        "logits" + NOT_FINITE,
        "logits",
    )


def test_infinities_on_one_side_alone_are_a_difference() -> None:
    plain = np.ones(10, np.float32)
    for one, other in ((plain, logits(10)), (logits(10), plain)):
        assert differs(outputs(logits=one), outputs(logits=other)) != ""


@pytest.mark.parametrize("kind", ["gradients", "losses", "after"])
def test_a_loss_a_gradient_or_a_state_that_is_no_number_fails_on_both_sides(kind: str) -> None:
    bad: Mapping[str, np.ndarray] = {"w": np.array([1.0, np.nan], np.float32)}
    empty: dict[str, Any] = {"losses": (), "outputs": {}, "gradients": {}, "before": {}, "after": {}}
    trace = Trace(
        **{**empty, kind: (float("nan"),) if kind == "losses" else bad}, parameters=frozenset({"w"})
    )
    assert differs(trace, trace) != ""


def test_a_mask_among_the_buffers_may_hold_them() -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    state = {"w": np.ones(3, np.float32), "mask": mask}
    step = {"w": np.zeros(3, np.float32), "mask": mask.copy()}
    names = frozenset({"w"})
    assert differs(state_trace(state, step, names), state_trace(state, step, names)) == ""
    other = {**step, "mask": np.zeros((4, 4), np.float32)}
    assert differs(state_trace(state, step, names), state_trace(state, other, names)) != ""


@pytest.fixture
def consume(tmp_path: Any) -> Any:
    """What the probe says of a step, beside a reference whose third batch alone has such logits."""
    window = outputs(**{"0:logits": np.ones(10), "1:logits": np.ones(10), "2:logits": logits(10)})
    write_reference(tmp_path, window_name(CONTRACT), make_reference(window))
    write_reference(tmp_path, reference_name(CONTRACT), make_reference(outputs(logits=np.ones(10))))

    def told(loss: float = 1.0, **named: np.ndarray) -> dict[str, Any]:
        cell = Cell("x", "own", "jax", CONTRACT, "cpu", "jax")
        running = SimpleNamespace(loss=lambda handle: loss, outputs=lambda handle: named)
        job = SimpleNamespace(cell=cell, prepared=str(tmp_path))
        opened: Any = SimpleNamespace(job=job, running=running, done=None)
        return consumed.probe(opened, ())["consumed"]

    return told


def test_an_output_that_is_no_number_in_the_reference_may_be_none(consume: Any) -> None:
    found = consume(logits=logits(10))
    assert found["finite"] is True and found["unbounded"] == ["logits"]


def test_another_output_or_a_loss_may_not(consume: Any) -> None:
    assert consume(hidden=logits(10))["finite"] is False
    assert consume(logits=logits(10), hidden=logits(10))["finite"] is False
    assert consume(loss=float("nan"), logits=logits(10))["finite"] is False


def test_a_loss_may_be_all_that_a_step_returns(consume: Any, tmp_path: Any) -> None:
    """A user's forward that returned no outputs was void, eager's too: nothing had been read back but its loss."""
    assert consume(logits=np.ones(10))["owed"] is True and consume()["owed"] is True
    write_reference(tmp_path, window_name(CONTRACT), make_reference(outputs()))
    assert consume()["owed"] is False
