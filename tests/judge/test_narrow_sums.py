"""Sums in half precision: said of a row whose program adds so, and beside a proof that failed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted_sessions import loud, make_session, row
from test_planted_faults import probe

from detente.judge import judge
from detente.records.evidence import Evidence

RULE = "sums-narrow"


def adding(evidence: Evidence, **sums: int) -> Evidence:
    return probe("program", narrow_sums=sums)(evidence)


def off(evidence: Evidence) -> Evidence:
    """Ten times as far off as the reference in every tensor."""
    return replace(evidence, errors=tuple(replace(e, err=max(e.err, e.rms) / 10) for e in evidence.errors))


@pytest.mark.parametrize("precision", ["bf16", "bf16-true"])
def test_long_sums_in_half_precision_are_said(precision: str) -> None:
    found = judge(make_session(precision=precision, plant={"jax": lambda e: adding(e, bf16=4096, f16=64)}))
    said = loud(found, "jax")[RULE]
    assert said.severity == "warn" and "up to 4,096 terms in bfloat16" in said.what
    assert RULE not in loud(found, "torch-eager")


@pytest.mark.parametrize("sums", [{}, {"bf16": 31}])
def test_short_sums_are_no_finding(sums: dict[str, int]) -> None:
    assert RULE not in loud(
        judge(make_session(precision="bf16", plant={"jax": lambda e: adding(e, **sums)})), "jax"
    )


def test_a_proof_that_failed_says_how_the_program_adds() -> None:
    found = judge(make_session(precision="bf16", plant={"jax": lambda e: adding(off(e), bf16=1024)}))
    parity = row(found, "jax").parity
    assert parity.same_precision == "failed"
    assert parity.reason.endswith(
        "times its bound; its program adds up to 1,024 terms in bfloat16, a rounding for each (sums-narrow)"
    )


def test_a_proof_that_failed_of_a_program_that_adds_wide_says_nothing_of_sums() -> None:
    found = judge(make_session(precision="bf16", plant={"jax": off}))
    assert "terms" not in row(found, "jax").parity.reason


def test_in_fp32_sums_are_no_reason() -> None:
    found = judge(make_session(precision="fp32", plant={"jax": lambda e: adding(off(e), bf16=1024)}))
    assert "terms" not in row(found, "jax").parity.reason
    assert RULE not in {f.rule for f in row(found, "jax").findings}


def test_a_stack_without_a_program_is_not_checked() -> None:
    def without(evidence: Evidence) -> Evidence:
        return replace(evidence, probes={k: v for k, v in evidence.probes.items() if k != "program"})

    found = judge(make_session(precision="bf16", plant={"jax": without}))
    assert {f.severity for f in row(found, "jax").findings if f.rule == RULE} == {"unchecked"}
