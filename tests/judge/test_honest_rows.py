"""Honest rows that a rule once voided, as evidence; and what must still be caught where the rule has let go."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from planted_sessions import WEIGHTS, loud, make_session, probe, quiet, row

from detente.judge import judge
from detente.judge.parity import Proofs, Proved, parity_column
from detente.judge.rules.numerics import operand_shares
from detente.records.captured import constants_allowed
from detente.records.tensor_error import NOT_FINITE, TensorError

LN_10 = math.log(10)
ONE = [LN_10] * 4


def rotated(region: str = "train-step", precision: str = "fp32", **found: Any) -> dict[str, Any]:
    session = make_session(plant={"jax": probe("rotation", **found)}, region=region, precision=precision)
    result = judge(session)
    findings = [f for f in row(result, "jax").findings if f.rule == "stale-inputs"]
    assert precision != "fp32" or quiet(result, "torch-eager", "torch-compile")
    return {f.severity: f.what for f in findings}


@pytest.mark.parametrize(
    "found",
    [
        {"losses": ONE, "reference": ONE, "further": [[2.3, 2.4, 2.5, 2.6]]},
        # Its learning rate begins at 0.
        {"losses": ONE, "reference": ONE, "further": [ONE, ONE, [2.3, 2.4, 2.5, 2.6]]},
        # Too slow for the reference to say it of every batch.
        {"losses": ONE[:2], "reference": [], "further": [[2.3, 2.4]]},
    ],
    ids=["a head of zeros", "a warm-up", "no reference"],
)
def test_batches_of_one_loss_that_a_step_tells_apart_were_read(found: dict[str, Any]) -> None:
    assert rotated(**found) == {}


def test_where_nothing_trains_what_is_returned_tells_them_apart() -> None:
    told = {"losses": ONE, "reference": ONE, "returned": ["a", "b", "c", "d"]}
    assert rotated("gradient", **told) == {}


def test_a_loss_of_two_digits_may_be_anothers_by_chance() -> None:
    losses, right = [10.8125, 10.8125, 10.875, 10.75], [10.81, 10.82, 10.87, 10.75]
    assert rotated(precision="bf16", losses=losses, reference=right, further=[[9.0, 9.1, 9.2, 9.3]]) == {}


@pytest.mark.parametrize("region", ["forward", "train-step"])
def test_where_the_function_itself_tells_no_batch_from_another_it_is_not_checked(region: str) -> None:
    told = {"losses": [0.0] * 4, "reference": [0.0] * 4, "further": [[0.0] * 4] * 3, "returned": ["a"] * 4}
    found = rotated(region, **told)
    assert found.keys() == {"unchecked"} and "in the reference" in found["unchecked"]


@pytest.mark.parametrize(
    "found",
    [
        # The reference tells them apart: whatever else differs, this loss was not computed.
        {"losses": ONE, "reference": [2.31, 2.32, 2.33, 2.34], "further": [[2.3, 2.4, 2.5, 2.6]]},
        {
            "losses": [2.1, 2.2, 2.1, 2.3],
            "reference": [2.1, 2.2, 2.15, 2.3],
            "returned": ["a", "b", "c", "d"],
        },
        # They lie nearer than the precision resolves, and nothing tells them apart.
        {"losses": ONE, "reference": [LN_10 * (1 + 1e-8 * i) for i in range(4)], "further": [ONE] * 3},
        {"losses": ONE, "reference": [], "further": [ONE] * 3},
        {"losses": ONE},
    ],
    ids=["the reference knows", "two of four", "rounded", "no reference", "an older session"],
)
def test_stale_inputs_are_still_found(found: dict[str, Any]) -> None:
    assert "void" in rotated(**found)


def constants(region: str = "train-step", **captured: Any) -> dict[str, Any]:
    held = probe("program", constants_bytes=WEIGHTS)

    def change(evidence: Any) -> Any:
        return probe("captured", **captured)(held(evidence)) if captured else held(evidence)

    return loud(judge(make_session(plant={"jax": change}, region=region)), "jax")


def test_a_table_beside_weights_that_are_read_is_no_weight() -> None:
    assert constants(unread_bytes=0, compiled=0) == {}
    assert constants(unread_bytes=int(constants_allowed(WEIGHTS)), compiled=0) == {}


@pytest.mark.parametrize(
    "captured", [{"unread_bytes": WEIGHTS, "compiled": 0}, {"unread_bytes": 0, "compiled": 1}, {}]
)
def test_weights_that_change_nothing_or_are_compiled_in_are_baked_in(captured: dict[str, Any]) -> None:
    assert constants("forward", **captured)["weights-baked-in"].severity == "void"


def test_arguments_must_cover_the_state_beside_a_table_too() -> None:
    both = probe("program", constants_bytes=WEIGHTS, argument_bytes=WEIGHTS // 2)
    session = make_session(plant={"jax": lambda e: probe("captured", unread_bytes=0, compiled=0)(both(e))})
    assert "captured instead of passed" in loud(judge(session), "jax")["weights-baked-in"].what


def products(precision: str = "fp32", **program: Any) -> dict[str, Any]:
    return loud(judge(make_session(plant={"jax": probe("program", **program)}, precision=precision)), "jax")


def test_integers_round_nothing_and_are_no_share() -> None:
    assert products(product_dtypes={"f32": 6, "s32": 1}, product_flops={"f32": 100, "s32": 900}) == {}
    assert operand_shares({"s32": 1}) == {}


@pytest.mark.parametrize(
    "flops",
    [{"f32": 10**9, "bf16": 1}, {"f32": 10**9, "f8e4m3fn": 1}, {"f32": 90, "s8": 10}, {"f32": 90, "f64": 10}],
)
def test_a_narrow_product_of_whatever_share_and_many_others_are_found(flops: dict[str, int]) -> None:
    assert "product-dtypes-differ" in products(product_dtypes=dict.fromkeys(flops, 1), product_flops=flops)


def test_shares_are_of_flops_where_they_are_known() -> None:
    """Three small products of nine are float32 in a contract of bf16, as autocast leaves them."""
    counted = {"bf16": 6, "f32": 3}
    by_flops = products("bf16", product_dtypes=counted, product_flops={"bf16": 10**6, "f32": 10**3})
    assert "product-dtypes-differ" not in by_flops
    assert "product-dtypes-differ" in products("bf16", product_dtypes=counted)


@pytest.mark.parametrize("affinity", [[[0], [0, 1], [1]], [[0], [1]]])
def test_of_a_bound_pool_one_thread_may_do_it_all(affinity: list[list[int]]) -> None:
    """OMP_PROC_BIND, and a step that is too small for two."""
    bound = probe("threads", affinity=affinity, computing=[[0]])
    assert quiet(judge(make_session(plant={"jax": bound})))


@pytest.mark.parametrize(
    ("affinity", "computing"),
    [([[0], [0, 1]], [[0]]), ([[0], [0, 1]], [[0], [0]]), ([[0], [1]], [[0], [0]])],
    ids=["shrunk", "both on one core", "two of a pool on one core"],
)
def test_work_that_is_kept_on_one_core_of_two_is_still_found(affinity: Any, computing: Any) -> None:
    found = loud(
        judge(make_session(plant={"jax": probe("threads", affinity=affinity, computing=computing)})), "jax"
    )
    assert found["affinity-differs"].severity == "void"


def proved(*errors: TensorError) -> Any:
    return parity_column(Proofs(precision=(Proved(errors),)), "fp32")


LOGITS = TensorError("output", "logits", 1e-7, 1e-7, 1.0, 160)
FORBIDDEN = TensorError("output", "logits" + NOT_FINITE, 0.0, 0.0, 1.1, 160)


def test_infinities_in_the_references_places_are_no_error() -> None:
    assert proved(LOGITS, FORBIDDEN).same_precision == "passed"


@pytest.mark.parametrize("err", [1e-9, 0.1, math.inf])
@pytest.mark.parametrize("beside", [1.0, 1e9])
def test_infinities_in_other_places_are(err: float, beside: float) -> None:
    large = replace(LOGITS, rms=beside, err=1e-7 * beside)
    found = proved(large, replace(FORBIDDEN, err=err))
    assert found.same_precision == "failed"
    assert "output logits is not finite in other places than the reference" in found.reason


@pytest.mark.parametrize(("owed", "void"), [(False, False), (True, True), (None, True)])
def test_a_forward_may_return_its_loss_alone(owed: bool | None, void: bool) -> None:
    """Where the reference has nothing besides; sessions of before 30 November do not say what it has."""
    told = {"outputs": []} if owed is None else {"outputs": [], "owed": owed}
    found = loud(judge(make_session(plant={"jax": probe("consumed", **told)}, region="forward")), "jax")
    assert ("work-removed" in found) is void, found
