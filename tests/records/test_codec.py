"""Records survive the trip through JSON, and what does not fit is named."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detente.records.cell import Cell
from detente.records.codec import SchemaError, dumps, from_json, to_json
from detente.records.contract import CONTRACTS
from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.records.sample import Sample
from detente.records.tensor_error import TensorError

CELL = Cell("gpt2", "tiny", "jax", CONTRACTS["train-step"].at("bf16"), "cpu", "jax#2")


def test_a_job_comes_back_equal() -> None:
    job = Job("time", CELL, 7, "p", "a", "c", probes=("threads", "slope"), options={"x": [1, {"y": None}]})
    assert from_json(Job, json.loads(dumps(job))) == job


@given(st.lists(st.floats(width=64), max_size=5), st.floats(), st.text(max_size=20))
def test_evidence_comes_back_with_every_float(losses: list[float], err: float, reason: str) -> None:
    evidence = Evidence(
        "ok",
        "done",
        reason,
        losses=tuple(losses),
        samples=(Sample(5, 2),),
        errors=(TensorError("loss", "1", err, 0.0, 1.0, 1),),
        probes={"rotation": {"losses": losses}},
    )
    back = from_json(Evidence, json.loads(dumps(evidence)))
    assert repr(back) == repr(from_json(Evidence, to_json(back)))
    assert [math.isnan(x) for x in back.losses] == [math.isnan(x) for x in losses]
    assert repr(back.probes["rotation"]["losses"]) == repr(losses)


def test_a_schema_name_is_the_first_key() -> None:
    assert next(iter(json.loads(dumps(CELL, "detente/cell/1")).items())) == ("schema", "detente/cell/1")


def test_unknown_keys_are_a_newer_writers_and_absent_ones_have_defaults() -> None:
    assert from_json(Sample, {"wall_ns": 3, "later": True}) == Sample(3)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"wall_ns": "3"}, "Sample.wall_ns: expected int, got '3'"),
        ({"wall_ns": True}, "Sample.wall_ns: expected int, got True"),
        ({}, "missing"),
        ([], "expected an object"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(data: object, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        from_json(Sample, data)


def test_a_literal_outside_its_values_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"Evidence\.status: 'fine' is not one of"):
        from_json(Evidence, {"status": "fine", "phase": "done"})


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(SchemaError, match="complex"):
        to_json({"x": 1j})
