"""Both levels of the proof, on errors as workers bring them back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from detente.judge.parity import (
    NEGLIGIBLE,
    Proofs,
    Proved,
    first_difference,
    judge_tensors,
    parity_column,
    relative_floor,
)
from detente.records.precision import PRECISIONS
from detente.records.tensor_error import TensorError

FP64, FP32, BF16, TF32 = (PRECISIONS[p] for p in ("fp64", "fp32", "bf16", "tf32"))


def tensor(kind="gradient", name="w", err=0.0, err_ref=0.0, rms=1.0) -> TensorError:
    return TensorError(kind, name, err, err_ref, rms, 4096)


def fails(error: TensorError, precision) -> bool:
    return first_difference(judge_tensors([error], precision)) is not None


def test_same_function_is_relative_and_tight():
    assert not fails(tensor(err=0.9e-9 * 5, rms=5.0), FP64)
    assert fails(tensor(err=1.1e-9 * 5, rms=5.0), FP64)
    # The reference's own error does not excuse anything in fp64.
    assert fails(tensor(err=2e-9, err_ref=1.0), FP64)


def test_same_precision_is_four_reference_errors_and_a_floor():
    floor = 64 * 2.0**-23
    assert not fails(tensor(err=4e-5 + 0.99 * floor, err_ref=1e-5), FP32)
    assert fails(tensor(err=4e-5 + 1.01 * floor, err_ref=1e-5), FP32)
    assert not fails(tensor("update", err=1.99e-5), FP32)
    assert fails(tensor("update", err=2.01e-5), FP32)


def test_planted_fault_sizes_are_found():
    """Factors of the notes: erf-GELU 675x, LayerNorm epsilon 13x the reference's error; a fair pair 1.76x."""
    assert not fails(tensor(err=1.76e-5, err_ref=1e-5), FP32)
    assert fails(tensor(err=13e-5, err_ref=1e-5), FP32)


def test_floors_of_reduced_precision_are_one_rounding():
    """64 eps of bf16 would be half of the tensor and prove nothing."""
    assert relative_floor(BF16, "gradient") == 2.0**-8
    assert relative_floor(TF32, "gradient") == 2.0**-11
    assert relative_floor(BF16, "update") == 2.0**-8
    assert fails(tensor(err=0.1, err_ref=0.01), BF16)
    assert not fails(tensor("loss", err=1e-3, err_ref=1e-5), BF16)


def test_tiny_tensors_are_listed():
    noise = tensor(name="bias_k", err=1e-9, err_ref=1e-9, rms=1e-15)
    judged = judge_tensors([tensor(err=1e-7), noise], FP32)
    assert [j.share is None for j in judged] == [False, True]
    column = parity_column(Proofs(precision=(Proved((tensor(err=1e-7), noise)),)), "fp32")
    assert (column.same_precision, column.tensors, column.listed) == ("passed", 2, 1)


def test_a_tensor_that_should_be_zero_and_is_large_is_a_difference():
    wrong = tensor(name="bias_k", err=0.5, err_ref=1e-15, rms=1e-15)
    assert first_difference(judge_tensors([tensor(err=1e-7), wrong], FP32)).error.name == "bias_k"
    assert NEGLIGIBLE < 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["err", "rms", "err_ref"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_not_finite_fails(bad, field, precision):
    errors = (tensor(), replace(tensor(name="v"), **{field: bad}))
    column = parity_column(Proofs(precision=(Proved(errors),)), precision)
    assert column.same_precision == "failed" and "not finite" in column.reason and " v " in column.reason


def test_the_first_differing_tensor_is_named():
    errors = (tensor("loss", "1"), tensor(name="h.0", err=1.0), tensor(name="h.1", err=9.0))
    column = parity_column(Proofs(precision=(Proved(errors),)), "fp32")
    assert column.worst and column.worst.name == "h.0" and column.share and column.share > 1
    assert "gradient h.0" in column.reason


def test_every_process_is_judged():
    good, bad = (tensor(),), (tensor(err=1.0),)
    assert parity_column(Proofs(precision=(Proved(good), Proved(bad))), "fp32").same_precision == "failed"


def test_the_state_behind_many_steps_has_the_bound_of_as_many():
    """optax's 1 - b2^t in float32 moved all moments of a fair row by 5.7e-5 in 35 steps, and it was void by the floor
    of three; a step left out of them moves them by 3e-2."""
    three, fair = (tensor("update"),), (tensor("moment", "exp_avg:v", err=5.7e-5, err_ref=4.3e-6),)
    short = (tensor("moment", "exp_avg:v", err=3e-2, err_ref=4.3e-6),)

    def column(proved):
        return parity_column(Proofs(precision=(proved,)), "fp32")

    assert column(Proved(three, fair, 3)).same_precision == "failed"
    passed = column(Proved(three, fair, 35))
    assert (passed.same_precision, passed.tensors) == ("passed", 2)
    failed = column(Proved(three, short, 35))
    assert failed.same_precision == "failed" and "exp_avg:v" in failed.reason
    # What three steps may not be off by, they may not be off by beside a long window either.
    assert column(Proved((tensor("update", err=1e-4),), fair, 35)).same_precision == "failed"


def test_levels_that_did_not_run_are_not_checked():
    column = parity_column(Proofs(), "fp32")
    assert (column.same_function, column.same_precision, column.worst) == ("not checked", "not checked", None)


def test_a_proof_from_another_device_is_inherited():
    proof = (tensor(err=1e-12),)
    assert parity_column(Proofs((proof,), False, (Proved(proof),)), "fp32").same_function == "inherited"
    assert parity_column(Proofs((proof,), True, (Proved(proof),)), "fp32").same_function == "passed"
    assert parity_column(Proofs(((tensor(err=1.0),),), False, ()), "fp32").same_function == "failed"


def test_zero_reference():
    assert not fails(tensor(rms=0.0), FP32)
    assert fails(tensor(rms=0.0, err=1e-3), FP32)


def test_an_updates_tail_is_judged_by_the_references_own_tail() -> None:
    """GPT-2 Small's case: the tensor's own err_ref is small by luck, the run's 95th percentile is not."""
    from detente.judge.parity import judge_tensors
    from detente.records.precision import PRECISIONS

    run = [TensorError("update", f"w{i}", 3e-5, 2e-4 if i < 6 else 3e-5, 1.0, 100) for i in range(40)]
    unlucky = TensorError("update", "b", 2.3e-4, 3e-5, 1.0, 100)
    wrong = TensorError("update", "c", 1e-2, 3e-5, 1.0, 100)
    gradient = TensorError("gradient", "b", 2.3e-4, 3e-5, 1.0, 100)
    *_, a, b, c = judge_tensors([*run, unlucky, wrong, gradient], PRECISIONS["fp32"])
    assert a.share is not None and a.share < 1
    assert b.share is not None and b.share > 1
    assert c.share is not None and c.share > 1, "gradients keep the sharp bound"
    few = judge_tensors([*run[:10], unlucky], PRECISIONS["fp32"])[-1]
    assert few.share is not None and few.share > 1, "too few updates have no percentile"
