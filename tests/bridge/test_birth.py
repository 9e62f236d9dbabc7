"""The first state of an optimizer is the same whether it is written or made by a program."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

from detente.bridge.lower.precision import x64
from detente.bridge.optim.rule import trace
from detente.bridge.roll.stacks import Stack, Stacks
from detente.bridge.state.birth import Births
from detente.bridge.state.place import to_jax

OPTIMIZERS: dict[str, tuple[Any, bool]] = {
    "AdamW": (torch.optim.AdamW, True),
    "AdamW, amsgrad": (lambda p: torch.optim.AdamW(p, amsgrad=True), True),
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1), True),
    "RMSprop, centered": (lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9), True),
    "NAdam": (torch.optim.NAdam, True),
    # its step sizes begin as the learning rate, which is a number of the program's
    "Rprop": (torch.optim.Rprop, False),
    # its first step is a program of its own, and what that does not read begins as zeros
    "ASGD": (torch.optim.ASGD, True),
}
STACKS = (Stacks(), Stacks((Stack("0-2.weight", ("0.weight", "1.weight", "2.weight")),)))


def births(make: Any, dtype: torch.dtype) -> tuple[Births, dict[str, Any], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)), nn.Linear(3, 1)).to(dtype)
    optimizer = make(model.parameters())
    rule = trace(optimizer, model.named_parameters())
    values = {n: to_jax(p.detach()) for n, p in model.named_parameters()}
    return Births(rule.init, frozenset(rule.programs)), values, rule.hyper(optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("stacks", STACKS, ids=["apart", "stacked"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_written_is_what_the_program_makes(name: str, stacks: Stacks, dtype: torch.dtype) -> None:
    make, is_written = OPTIMIZERS[name]
    born, values, hyper = births(make, dtype)
    with x64():
        joined = stacks.join(values, jax.numpy.stack)
        wanted = born.program(stacks)(joined, hyper)
        found = born.written(joined, hyper, stacks)
    assert (found is not None) == is_written
    if found is not None:
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@pytest.mark.parametrize("width", [2, 64, 700])
def test_it_takes_no_compiler_and_each_leaf_has_memory_of_its_own(width: int) -> None:
    """JAX takes an array of numpy's as it lies where it lies well, whatever ``may_alias`` says."""

    def init(params: Any, hyper: Any) -> Any:
        return {n: {k: jax.numpy.zeros((width, width)) for k in ("first", "second")} for n in params}

    born = Births(init, frozenset("abc"))
    with x64():
        made = born.at(()).make({n: jax.numpy.ones(2) for n in "abc"}, Stacks())
    assert not born._programs
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(made)]
    assert len(set(places)) == len(places) > 0


def test_layers_that_begin_otherwise_are_made_by_a_program() -> None:
    """``step`` of one layer begins at one, of the others at none."""

    def init(params: Any, hyper: Any) -> Any:
        return {n: {"count": jax.numpy.zeros(()) + (n == "1.weight")} for n in params}

    born = Births(init, frozenset(f"{k}.weight" for k in range(3)))
    stacks = STACKS[1]
    with x64():
        values = {"0-2.weight": jax.numpy.ones((3, 2))}
        assert born.written(values, (), stacks) is None
        made = born.at(()).make(values, stacks)
    assert np.asarray(made["0-2.weight"]["count"]).tolist() == [0, 1, 0]
