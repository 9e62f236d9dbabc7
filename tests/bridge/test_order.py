"""Sorting, selecting and what is made of an order: torch's own answers on ties, zeros with a sign, infinities and what
is not a number, of every dtype and along every axis."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from detente.bridge.lower.ops import sort as room
from detente.bridge.lower.precision import torch_numerics

FLOATS = ("float32", "bfloat16", "float16", "float64")
WHOLE = ("int8", "int16", "int32", "uint8", "int64", "bool")


def drawn(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Few different values, so that many are equal, and the special ones among them."""
    draw = np.random.default_rng(0)
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.from_numpy(draw.integers(0, 2, shape)).to(kind)
    if dtype in WHOLE:
        info = torch.iinfo(kind)
        ends = torch.tensor([info.min, info.max, 0, 1, 2, 3], dtype=kind)
        return ends[torch.from_numpy(draw.integers(0, 6, shape))]
    values = [
        0.0,
        -0.0,
        float("inf"),
        -float("inf"),
        float("nan"),
        -float("nan"),
        1.0,
        -1.0,
        1e-40,
        -1e-40,
        2.5,
    ]
    return torch.tensor(values, dtype=kind)[torch.from_numpy(draw.integers(0, len(values), shape))]


def asked(x: torch.Tensor) -> Any:
    wide = x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
    return jnp.asarray(wide, str(x.dtype).removeprefix("torch."))


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_order_is_torchs_stable_one(dtype: str, descending: bool, dim: int) -> None:
    x = drawn(dtype, (5, 41, 3))
    wanted = x.sort(dim=dim, descending=descending, stable=True)[1]
    with torch_numerics("highest"):
        found = jax.jit(lambda x: room.order(x, dim, descending))(asked(x))
    assert found.dtype == jnp.int32
    assert np.array_equal(np.asarray(found), wanted.numpy())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("k", [1, 3, 10, 41])
@pytest.mark.parametrize("largest, dim", [*itertools.product([True, False], [0, 1])])
def test_the_first_are_those_of_the_order(dtype: str, k: int, largest: bool, dim: int) -> None:
    """The least of the equal places first, whichever way they are found."""
    x = drawn(dtype, (83, 83) if dim == 0 else (7, 83))
    wanted = x.sort(dim=dim, descending=largest, stable=True)[1].narrow(dim, 0, k)
    with torch_numerics("highest"):
        found = jax.jit(lambda x: room._first(x, k, dim, largest))(asked(x))
    assert np.array_equal(np.asarray(found), wanted.numpy())
    # and torch's own selection has the same values
    values = torch.topk(x, k, dim, largest)[0]
    assert torch.equal(x.gather(dim, wanted).nan_to_num(7.0), values.nan_to_num(7.0))


def test_a_selection_is_one_and_no_sort() -> None:
    """Or every test above passes without looking."""
    if jax.default_backend() != "cpu":
        pytest.skip(f"steps run on {jax.default_backend()}")
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 400)), jnp.float32)
    with torch_numerics("highest"):
        few = jax.jit(lambda x: room._first(x, 10, 1, True)).lower(x).compile().as_text()
        all_ = jax.jit(lambda x: room.order(x, 1, True)).lower(x).compile().as_text()
    assert "TopK" in few and " sort(" not in few
    assert "s64[4,400]{1,0} sort(" in all_
