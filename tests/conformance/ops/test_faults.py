"""What torch raises, the table reports: the same exception type at the same calls, and none where torch is silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from opinfo.sides import in_table

X = torch.arange(12.0).reshape(3, 4)
WHOLE = torch.arange(12).reshape(3, 4)

# name, function of the suspicious tensor, a good one, a bad one
CASES: list[tuple[str, Callable[..., Any], torch.Tensor, torch.Tensor]] = [
    ("embedding above", lambda i: F.embedding(i, X), torch.tensor([0, 2]), torch.tensor([0, 3])),
    ("embedding below", lambda i: F.embedding(i, X), torch.tensor([0, 2]), torch.tensor([0, -1])),
    ("index above", lambda i: X[i], torch.tensor([2, -3]), torch.tensor([3])),
    ("index below", lambda i: X[i], torch.tensor([2, -3]), torch.tensor([-4])),
    ("index second", lambda i: X[:, i], torch.tensor([3, -4]), torch.tensor([4])),
    ("gather", lambda i: X.gather(1, i), torch.tensor([[3], [0], [1]]), torch.tensor([[4], [0], [1]])),
    ("gather below", lambda i: X.gather(1, i), torch.tensor([[3], [0], [1]]), torch.tensor([[-1], [0], [1]])),
    ("scatter", lambda i: X.scatter(1, i, 1.0), torch.tensor([[3]]), torch.tensor([[4]])),
    (
        "scatter_add",
        lambda i: X.scatter_add(0, i, X[:1]),
        torch.tensor([[2, 2, 2, 2]]),
        torch.tensor([[3, 0, 0, 0]]),
    ),
    ("index_select", lambda i: X.index_select(0, i), torch.tensor([2]), torch.tensor([3])),
    ("index_add", lambda i: X.index_add(0, i, X[:1]), torch.tensor([2]), torch.tensor([3])),
    ("take", X.take, torch.tensor([11, -12]), torch.tensor([12])),
    ("index_put", lambda i: X.index_put((i,), torch.zeros(4)), torch.tensor([2]), torch.tensor([3])),
    ("label", lambda i: F.cross_entropy(X, i), torch.tensor([0, 3, -100]), torch.tensor([0, 4, 1])),
    ("label below", lambda i: F.cross_entropy(X, i), torch.tensor([0, 3, 1]), torch.tensor([0, -1, 1])),
    ("nll label", lambda i: F.nll_loss(X, i), torch.tensor([0, 3, 1]), torch.tensor([0, 4, 1])),
    ("floor_divide", lambda i: WHOLE // i, torch.tensor([1, 2, -3, 4]), torch.tensor([1, 0, 3, 4])),
    ("remainder", lambda i: WHOLE % i, torch.tensor([1, 2, -3, 4]), torch.tensor([1, 0, 3, 4])),
    ("fmod", lambda i: torch.fmod(WHOLE, i), torch.tensor([1, 2, -3, 4]), torch.tensor([1, 0, 3, 4])),
    (
        "div trunc",
        lambda i: torch.div(WHOLE, i, rounding_mode="trunc"),
        torch.tensor([1, 2, -3, 4]),
        torch.tensor([1, 0, 3, 4]),
    ),
    ("one_hot", lambda i: F.one_hot(i, 3), torch.tensor([0, 2]), torch.tensor([0, 3])),
    (
        "binary_cross_entropy",
        lambda p: F.binary_cross_entropy(p, torch.ones(2)),
        torch.tensor([0.0, 1.0]),
        torch.tensor([0.5, 1.5]),
    ),
    (
        "embedding_bag",
        lambda i: F.embedding_bag(i, X, torch.tensor([0]), mode="sum"),
        torch.tensor([0, 2]),
        torch.tensor([0, 3]),
    ),
]


@pytest.mark.parametrize(
    ("function", "good", "bad"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_fault_where_torch_raises(
    function: Callable[..., Any], good: torch.Tensor, bad: torch.Tensor
) -> None:
    function(good)
    with pytest.raises((IndexError, RuntimeError)) as raised:
        function(bad)
    assert in_table(function, good).error is None
    error = in_table(function, bad).error
    assert error is not None
    assert isinstance(error, IndexError) == isinstance(raised.value, IndexError)


def test_a_number_as_divisor_is_checked() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        _ = WHOLE // 0
    error = in_table(lambda x: x // 0, WHOLE).error
    assert isinstance(error, RuntimeError) and "ZeroDivisionError" in str(error)


def test_division_of_floats_by_zero_is_no_fault() -> None:
    assert in_table(lambda x: x // torch.zeros(4), X).error is None
