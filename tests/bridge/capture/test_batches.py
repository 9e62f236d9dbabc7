"""Batches as libraries make them: containers of many kinds, and dictionaries whose keys come in another order."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.capture.batch import flatten

X, Y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])
Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Row:
    x: torch.Tensor
    y: torch.Tensor


class Encoding(UserDict):
    def __getattr__(self, name: str) -> Any:
        return self.data[name]


class Graph:
    """As PyG's ``Data``, which need not be installed: told by where its class says that it comes from."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> Graph:
        return cls(**held)


Graph.__module__ = "torch_geometric.data.data"


def of(made: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return (made["x"], made["y"]) if isinstance(made, dict | UserDict) else (made.x, made.y)


def trained(*batches: Any, count: int = 1) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    step = bridge.compile(
        model,
        lambda m, b: nn.functional.cross_entropy(m(of(b)[0]), of(b)[1]),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=batches[0],
        cache=False,
    )
    losses = [float(step(batch)) for batch in batches]
    assert len(step.programs) == count
    return losses, step


@pytest.mark.parametrize(
    "kind",
    [
        Pair,
        Row,
        lambda x, y: SimpleNamespace(x=x, y=y),
        lambda x, y: Encoding({"x": x, "y": y}),
        lambda x, y: Graph(x=x, y=y, batch=None),
    ],
    ids=["namedtuple", "dataclass", "namespace", "mapping", "graph"],
)
def test_a_batch_of_any_container_trains_alike(kind: Any) -> None:
    wanted, _ = trained({"x": X, "y": Y}, {"x": X, "y": Y})
    found, _ = trained(kind(X, Y), kind(X, Y))
    assert found == wanted


def test_the_same_keys_in_another_order_train_alike() -> None:
    wanted, _ = trained({"x": X, "y": Y}, {"x": X, "y": Y})
    assert trained({"x": X, "y": Y}, {"y": Y, "x": X}, count=2)[0] == wanted
    assert trained(SimpleNamespace(x=X, y=Y), SimpleNamespace(y=Y, x=X), count=2)[0] == wanted


def test_a_loss_may_go_through_the_values_as_they_come() -> None:
    """One program for both orders would take the first value of one order for the first of the other."""
    batches = [{"a": X, "b": 2 * X}, {"b": 2 * X, "a": X}, {"a": X, "b": 2 * X}]

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return sum((k + 1) * model(v).square().mean() for k, v in enumerate(batch.values()))

    torch.manual_seed(0)
    mine, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(mine.state_dict())
    step = bridge.compile(
        mine, loss, torch.optim.SGD(mine.parameters(), lr=0.1), example_batch=batches[0], cache=False
    )
    found = [float(step(batch)) for batch in batches]
    optimizer, wanted = torch.optim.SGD(theirs.parameters(), lr=0.1), []
    for batch in batches:
        optimizer.zero_grad()
        value = loss(theirs, batch)
        value.backward()
        optimizer.step()
        wanted.append(float(value.detach()))
    assert found == pytest.approx(wanted, rel=1e-5)


def test_nested_ones_too_and_what_is_built_is_what_was_taken_apart() -> None:
    one = {"b": {"z": X, "a": [Y, 1.5]}, "a": (X, None)}
    other = {"a": (X, None), "b": {"a": [Y, 1.5], "z": X}}
    (mine, layout), (theirs, same) = flatten(one), flatten(other)
    assert layout.shape == same.shape and layout.avals == same.avals and layout.static == same.static
    assert all(a is b for a, b in zip(mine, theirs, strict=True))
    for made, wanted in ((layout.build(mine), one), (same.build(mine), other)):
        assert list(made) == list(wanted) and made["b"]["a"] == [Y, 1.5] and made["b"]["z"] is X
        assert made["a"] == (X, None)


def test_an_ordered_dictionary_keeps_its_order() -> None:
    one, other = OrderedDict(x=X, y=Y), OrderedDict(y=Y, x=X)
    assert flatten(one)[1].key != flatten(other)[1].key


def test_a_pure_function_takes_them_in_any_order() -> None:
    model = nn.Linear(3, 2)
    made = bridge.functional(
        model, lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]), {"x": X, "y": Y}
    )
    assert float(made.loss(made.params, {"y": Y, "x": X})) == float(made.loss(made.params, {"x": X, "y": Y}))


@pytest.mark.parametrize(
    ("batch", "hint"),
    [
        (X.to_sparse(), "to_dense"),
        (object(), "a tuple"),
        (X.numpy(), "from_numpy"),
        (X.numpy()[0, 0], "item()"),
        (torch.nested.nested_tensor([X, X[:2]]), "to_padded_tensor"),
        (torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged), "to_padded_tensor"),
        (torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), "dequantize"),
        (torch.quantize_per_channel(X, torch.ones(3), torch.zeros(3), 1, torch.qint8), "dequantize"),
        (X.to("meta"), "values"),
        (torch.zeros(2, dtype=torch.complex32), "convert"),
        (torch.empty(2, dtype=torch.bits8), "integers"),
    ],
    ids=[
        *(
            "sparse",
            "an object",
            "numpy",
            "a number of numpy's",
            "nested",
            "jagged",
            "quantized",
            "by channel",
            "meta",
            "complex32",
            "bits",
        ),
    ],
)
def test_what_is_no_batch_is_told_what_to_make_of_it(batch: Any, hint: str) -> None:
    with pytest.raises(bridge.Refused, match=rf"batch\['x'\] is [\s\S]*{hint}"):
        flatten({"x": batch})
