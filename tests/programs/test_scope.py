"""Names that frameworks write into their programs, and what they say."""

from __future__ import annotations

import pytest

from detente.programs.operators import origin_of
from detente.programs.scope import ROOT, Scope, read_scope, scope_name


@pytest.mark.parametrize(
    ("op_name", "path", "direction"),
    [
        ("jit(step)/jvp(GPT)/h_0/ln_1/mul", "GPT.h_0.ln_1", "forward"),
        ("jit(step)/transpose(jvp(GPT))/h_0/ln_1/dot_general", "GPT.h_0.ln_1", "backward"),
        ("jit(step)/jvp(vmap(E))/ln/eqx.nn.LayerNorm/add", "E.ln.eqx.nn.LayerNorm", "forward"),
        (
            "jit(step)/while/body/closed_call/jvp(transformer.h.*.attn.resid_dropout)/jit(_threefry_fold_in)/xor",
            "transformer.h.*.attn.resid_dropout",
            "forward",
        ),
        (
            "jit(step)/transpose(jvp(h.3))/checkpoint/rematted_computation/mlp/tanh",
            "h.3.mlp",
            "remat",
        ),
        ("jit(step)/jvp()/dot_general", "", "forward"),
        ("jit(step)/transpose(jvp())/reduce_sum", "", "backward"),
        ("jit(step)/optimizer/sqrt", "", "optimizer"),
        ("jit(step)/optimizer/h.3.attn/sqrt", "h.3.attn", "optimizer"),
        ("jit(step)/cond/branch_1_fun/jvp(h.0)/add", "h.0", "forward"),
        ("jit(a/b)/jvp(h.0/attn)/add", "h.0/attn", "forward"),
        ("add", "", "forward"),
        # A module may be called as control flow is, where that does not stand around it.
        ("jit(step)/jvp(body)/0/conv1/conv_general_dilated", "body.0.conv1", "forward"),
        ("jit(step)/transpose(jvp(EDSR))/body/block_0/conv/mul", "EDSR.body.block_0.conv", "backward"),
        ("jit(step)/jvp(Net)/cond/dense/add", "Net.cond.dense", "forward"),
        ("jit(step)/jvp(Net)/scan/dense/add", "Net.scan.dense", "forward"),
        ("jit(step)/jvp(while)/body/closed_call/body/conv/mul", "body.conv", "forward"),
        ("jit(step)/jvp(while)/body/eval_jaxpr/body/conv/mul", "body.conv", "forward"),  # jax 0.12
        ("jit(step)/jvp(h)/while/cond/lt", "h", "forward"),
        ("jit(step)/transpose(jvp(scan))/while/body/attn/mul", "attn", "backward"),
        # What has a derivative of its own is told once more, from the outermost scope on.
        ("jit(step)/transpose(jvp(0))/jvp(0)/jit(_where)/select_n", "0", "backward"),
        ("jit(step)/transpose(jvp(GPT))/h_0/jvp(GPT)/h_0/mul", "GPT.h_0", "backward"),
        ("jit(step)/transpose(jvp(0))/checkpoint/rematted_computation/jvp(0)/mul", "0", "remat"),
        ("jit(step)/transpose(jvp(0))/0/mul", "0.0", "backward"),
        (f"jit(step)/{ROOT}/checkpoint#/mul", "checkpoint", "forward"),
        ("jit(step)/jvp(root)/root#/conv/mul", "root.conv", "forward"),
        ("transpose(root)/optimizer#@.3/aten__mm/dot", "optimizer", "backward"),
    ],
)
def test_a_name_says_where_it_comes_from(op_name: str, path: str, direction: str) -> None:
    assert read_scope(op_name) == Scope(path, direction)


@pytest.mark.parametrize("op_name", ["((((", "))", "jvp(", "/", "///", "jit(step"])
def test_what_is_no_name_ends(op_name: str) -> None:
    assert isinstance(read_scope(op_name), Scope)


def test_a_function_with_a_derivative_of_its_own_lies_where_it_was_called() -> None:
    import re

    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def own(x: jax.Array) -> jax.Array:
        return jnp.exp(x)

    @own.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        return own(*primals), tangents[0] * jnp.sin(primals[0])

    def loss(x: jax.Array) -> jax.Array:
        with jax.named_scope("0"):
            with jax.named_scope("inner"):
                x = own(x @ x)
            x = own(x @ x)
        return jnp.sum(x @ x)

    text = jax.jit(jax.grad(loss)).lower(jnp.ones((4, 4))).compile().as_text()
    found = {read_scope(name) for name in re.findall(r'op_name="([^"]+)"', text) if "0" in name}
    assert {s.path for s in found if s is not None} <= {"0", "0.inner", ""}, found
    assert {s.direction for s in found if s is not None} == {"forward", "backward"}


def test_no_name_says_nothing() -> None:
    assert read_scope("") is None


@pytest.mark.parametrize(
    "name", ["body", "cond", "scan", "while", "remat", "checkpoint", "root", "optimizer", "tail"]
)
@pytest.mark.parametrize("direction", ["forward", "backward", "remat", "optimizer"])
def test_a_module_is_read_as_it_was_named_whatever_it_is_called(name: str, direction: str) -> None:
    assert read_scope(origin_of(name, direction)) == Scope(name, direction)
    inside = f"jit(step)/transpose(jvp(root))/{scope_name(name)}/0/{scope_name(name)}/mul"
    assert read_scope(inside) == Scope(f"{name}.0.{name}", "backward")
