"""bf16 on paper: what the compiler computes wide is said, and is no other function."""

from __future__ import annotations

import pytest
from planted_sessions import loud, make_session, row
from test_planted_faults import probe

from detente.judge import judge

RULE = "products-widened"


def session(precision: str, products: dict[str, int]):
    return make_session(precision=precision, plant={"jax": probe("compiled", product_dtypes=products)})


@pytest.mark.parametrize("precision", ["bf16", "bf16-true"])
def test_products_that_the_compiler_widens_are_said(precision: str) -> None:
    found = loud(judge(session(precision, {"f32": 49})), "jax")[RULE]
    assert found.severity == "warn" and "100 % in float32" in found.what


@pytest.mark.parametrize("products", [{"bf16": 49}, {"bf16": 99, "f32": 1}, {"bf16xbf16->f32": 49}])
def test_narrow_products_are_no_finding(products: dict[str, int]) -> None:
    assert RULE not in loud(judge(session("bf16", products)), "jax")


def test_in_fp32_nothing_is_asked() -> None:
    found = judge(session("fp32", {"f32": 49}))
    assert RULE not in {f.rule for f in row(found, "jax").findings}


def test_a_stack_without_an_optimised_program_is_not_checked() -> None:
    found = judge(session("bf16", {"f32": 49}))
    assert {f.severity for f in row(found, "torch-eager").findings if f.rule == RULE} == {"unchecked"}
