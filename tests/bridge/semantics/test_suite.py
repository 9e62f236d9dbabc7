"""The suite of cases on the bridge: every one passes; and the judge finds what is planted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from suite.case import Case, Observed
from suite.judge import outcome
from suite.subjects import subject
from suite.table import BY_NAME, CASES

from tests.sampled import sampled


@cache
def observed(name: str, by: str) -> tuple[Observed, ...]:
    return tuple(subject(by)(BY_NAME[name], run) for run in BY_NAME[name].runs)


@pytest.mark.parametrize("name", sampled(BY_NAME, 3))
def test_case(name):
    found = outcome(BY_NAME[name], observed(name, "torch"), observed(name, "detente"))
    assert found.passed, f"{found.kind}: {found.why}"


@pytest.mark.parametrize("name", sampled([case.name for case in CASES if not case.program], 3))
def test_torch_passes_its_own_yardstick(name):
    """A case that torch itself fails, run twice, would judge noise."""
    again = tuple(subject("torch")(BY_NAME[name], run) for run in BY_NAME[name].runs)
    found = outcome(BY_NAME[name], observed(name, "torch"), again)
    assert found.passed, f"{found.kind}: {found.why}"


def judged(name: str, **changes) -> str:
    """The outcome for torch's own observation with one thing changed in its last step."""
    case: Case = BY_NAME[name]
    right = observed(name, "torch")
    last = replace(right[0].moments[-1], **changes)
    wrong = (replace(right[0], moments=(*right[0].moments[:-1], last), error=""), *right[1:])
    return outcome(case, right, wrong).kind


def test_the_judge_finds_what_is_planted():
    moment = observed("no_grad region", "torch")[0].moments[0]
    double = {n: None if g is None else 2 * g for n, g in moment.gradients.items()}
    assert judged("no_grad region") == "same"
    assert judged("no_grad region", gradients=double) == "wrong"
    assert judged("no_grad region", gradients=dict.fromkeys(double)) == "wrong"
    assert judged("no_grad region", loss=moment.loss.double()) == "wrong"

    moment = observed("BatchNorm running statistics", "torch")[0].moments[-1]
    still = {n: torch.zeros_like(b) for n, b in moment.buffers.items()}
    assert judged("BatchNorm running statistics", buffers=still) == "wrong"

    (rows,) = observed("attention, a row that is all masked (bool)", "torch")[0].moments[0].aux
    assert (
        judged("attention, a row that is all masked (bool)", aux=(rows.where(rows != 0, torch.nan),))
        == "wrong"
    )

    (index,) = observed("narrowing of int64", "torch")[0].moments[0].aux[:1]
    assert judged("narrowing of int64", aux=(index.clamp(0), index.to(torch.int8))) == "wrong"

    first = observed("dropout under the compiled step", "torch")[0].moments[0]
    repeated = {"aux": first.aux, "gradients": first.gradients}
    assert judged("dropout under the compiled step", **repeated) == "wrong"
    assert judged("dropout under the compiled step", gradients=first.gradients) == "wrong"


def test_the_judge_finds_a_fault_that_is_swallowed():
    case, right = BY_NAME["label out of range"], observed("label out of range", "torch")
    assert right[0].error.startswith("IndexError") and len(right[0].moments) == 1
    silent = replace(right[0], moments=(*right[0].moments, right[0].moments[0]), error="")
    assert outcome(case, right, (silent,)).kind == "wrong"
    early = Observed((), "IndexError: too early")
    assert outcome(case, right, (early,)).kind == "wrong"


def test_an_error_where_torch_runs_passes_only_where_a_case_says_so():
    error = Observed((), "NotImplementedError: no")
    assert outcome(BY_NAME["detach"], observed("detach", "torch"), (error,)).kind == "fails"
    assert outcome(BY_NAME["x[x > 0]"], observed("x[x > 0]", "torch"), (error,)).kind == "refused"


def test_a_seed_that_does_nothing_is_found():
    case, right = BY_NAME["torch.manual_seed decides"], observed("torch.manual_seed decides", "torch")
    assert outcome(case, right, (right[0], right[0], right[0])).kind == "wrong"
    assert outcome(case, right, (right[0], right[2], right[2])).kind == "wrong"
