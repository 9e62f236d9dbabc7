"""What a program and its compiler make of narrow numbers is read from the program: products, and sums."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from detente.programs.probe import program_probe
from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.worker.probes.compiled import probe

jax = pytest.importorskip("jax", reason="JAX is not installed")


def opened(precision: str, lowered: Any) -> Any:
    from detente.stacks.jax_running import captures_of

    cell = Cell("ffn", "tiny", "jax", CONTRACTS["forward"].at(precision), "cpu", "jax")
    return SimpleNamespace(
        job=SimpleNamespace(cell=cell), captures=captures_of("step", lowered, lowered.compile())
    )


def lowered(dtype: Any) -> Any:
    x = jax.ShapeDtypeStruct((64, 64), dtype)
    return jax.jit(lambda a, b: a @ b).lower(x, x)


@pytest.mark.parametrize("precision", ["bf16", "bf16-true"])
def test_the_dtypes_are_those_of_the_optimised_program(precision: str) -> None:
    program = lowered(jax.numpy.bfloat16)
    text = program.compile().as_text()
    made = re.findall(r"= (\w+)\[[^ ]* dot\(", text)
    assert made, text
    found = probe(opened(precision, program), ())["compiled"]["product_dtypes"]
    # Of a product as the program before it says nothing: there both operands are bf16.
    assert found.keys() == set(made) and sum(found.values()) == len(made)


def test_wide_products_are_not_asked_about() -> None:
    assert probe(opened("fp32", lowered(jax.numpy.float32)), ()) == {}


def bias(rows: int, wide: bool) -> Any:
    """The gradient of a bias that every row is given."""
    jnp = jax.numpy

    def loss(b: Any, x: Any) -> Any:
        y = (x.astype(jnp.float32) + b.astype(jnp.float32)).astype(x.dtype) if wide else x + b
        return (y * y).sum()

    narrow = jnp.bfloat16
    return jax.jit(jax.grad(loss)).lower(
        jax.ShapeDtypeStruct((8,), narrow), jax.ShapeDtypeStruct((rows, 8), narrow)
    )


@pytest.mark.parametrize(("wide", "found"), [(False, {"bf16": 640}), (True, {})])
def test_the_gradient_of_a_broadcast_is_a_narrow_sum_and_a_sum_is_not(
    wide: bool, found: dict[str, int]
) -> None:
    """``.sum()`` stands in both programs: JAX widens it."""
    captured = next(c for c in opened("bf16", bias(640, wide)).captures if c.form == "hlo")
    assert program_probe(captured.data, captured.form)["narrow_sums"] == found
