"""Names that frameworks write into their programs, and what they say."""

from __future__ import annotations

import pytest

from detente.programs.scope import Scope, read_scope


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
    ],
)
def test_a_name_says_where_it_comes_from(op_name: str, path: str, direction: str) -> None:
    assert read_scope(op_name) == Scope(path, direction)


@pytest.mark.parametrize("op_name", ["((((", "))", "jvp(", "/", "///", "jit(step"])
def test_what_is_no_name_ends(op_name: str) -> None:
    assert isinstance(read_scope(op_name), Scope)


def test_no_name_says_nothing() -> None:
    assert read_scope("") is None
