"""How many terms a program adds in half precision."""

from __future__ import annotations

import pytest

from detente.programs.count import count, count_program
from detente.programs.module import Computation, Instruction, Module, Shape

from .build import parameter, program

TEXT = """module @jit_f {{
  func.func public @main(%arg0: tensor<4096x8x{kind}>) -> (tensor<8x{kind}>) {{
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<{kind}>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.{body} across dimensions = [0] : (tensor<4096x8x{kind}>, tensor<{kind}>) -> tensor<8x{kind}>
    return %0 : tensor<8x{kind}>
  }}
}}
"""  # noqa: E501


def summed(dtype: str, *dims: int, over: tuple[int, ...] = (0,), body: str = "add") -> Module:
    adds = Computation(
        "body",
        (parameter(0, dtype=dtype), parameter(1, dtype=dtype), Instruction(body, (Shape(dtype),), (0, 1))),
        2,
    )
    left = tuple(n for d, n in enumerate(dims) if d not in over)
    return program(
        [
            parameter(0, *dims, dtype=dtype),
            Instruction("constant", (Shape(dtype),)),
            Instruction("reduce", (Shape(dtype, left),), (0, 1), ("body",), reduced=over),
        ],
        adds,
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_terms_are_what_one_result_is_added_of(dtype: str) -> None:
    assert count(summed(dtype, 64, 8)).narrow_sums == {dtype: 64}
    assert count(summed(dtype, 4, 16, 8, over=(0, 1))).narrow_sums == {dtype: 64}


def test_wide_sums_and_other_reductions_are_none() -> None:
    assert count(summed("f32", 64, 8)).narrow_sums == {}
    assert count(summed("bf16", 64, 8, body="maximum")).narrow_sums == {}


@pytest.mark.parametrize(
    ("kind", "body", "found"), [("bf16", "add", {"bf16": 4096}), ("bf16", "maximum", {}), ("f32", "add", {})]
)
def test_the_same_of_a_text(kind: str, body: str, found: dict[str, int]) -> None:
    text = TEXT.format(kind=kind, body=body)
    assert count_program(text.encode(), "stablehlo").narrow_sums == found
