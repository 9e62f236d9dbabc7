"""What forward makes at its first call and finds from then on (a table in a dictionary): the first batch decides, as in
eager, whoever looks there finds it, and what somebody writes to it counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import detente
from tests.sampled import sampled

TABLE: dict[str, Any] = {}


def scale(m: Any, y: Any, x: Any) -> Any:
    if "w" not in m.cache:
        m.cache["w"] = torch.tensor(x.shape[0] ** -0.5)
    return y * m.cache["w"]


def a_setting(m: Any, y: Any, x: Any) -> Any:
    if "w" not in m.cache:
        m.cache["w"] = torch.tensor(m.setting["alpha"])
    return y * m.cache["w"]


def the_mode(m: Any, y: Any, x: Any) -> Any:
    return y * m.cache.setdefault("w", torch.tensor(1.0 if m.training else 3.0))


def one_that_grows(m: Any, y: Any, x: Any) -> Any:
    c = m.cache
    if "rows" not in c or c["rows"].shape[0] < x.shape[0]:
        c["rows"] = torch.arange(x.shape[0]).float().cos() + x.shape[0]
    return y * c["rows"][: x.shape[0], None]


def how_many_there_are(m: Any, y: Any, x: Any) -> Any:
    if x.shape[0] not in m.cache:
        m.cache[x.shape[0]] = torch.full((2,), 1.0 + len(m.cache))
    return y * m.cache[x.shape[0]]


def in_a_list(m: Any, y: Any, x: Any) -> Any:
    if m.held[0] is None:
        m.held[0] = (torch.ones(2) * x.shape[0], 3)
    return y * m.held[0][0]


def in_an_object(m: Any, y: Any, x: Any) -> Any:
    if not hasattr(m.plain, "w"):
        m.plain.w = torch.ones(2) * x.shape[0]
    return y * m.plain.w


def in_an_attribute(m: Any, y: Any, x: Any) -> Any:
    if not hasattr(m, "w"):
        m.w = torch.ones(2) * x.shape[0]
    return y * m.w


def in_a_global(m: Any, y: Any, x: Any) -> Any:
    if "w" not in TABLE:
        TABLE["w"] = torch.ones(2) * x.shape[0]
    return y * TABLE["w"]


def of_a_buffer(m: Any, y: Any, x: Any) -> Any:
    if x.shape[0] not in m.cache:
        m.cache[x.shape[0]] = m.scale * x.shape[0]
    return y * m.cache[x.shape[0]]


def of_a_float_that_moves(m: Any, y: Any, x: Any) -> Any:
    if x.shape[0] not in m.cache:
        m.cache[x.shape[0]] = torch.ones(2) * m.setting["moves"]
    return y * m.cache[x.shape[0]] * m.setting["moves"]


def anew_in_every_step(m: Any, y: Any, x: Any) -> Any:
    m.cache["mask"] = torch.ones(2) * x.shape[0]
    return y * m.cache["mask"]


class Net(nn.Module):
    def __init__(self, use: Any) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(4, 2), use
        self.cache: dict[Any, Any] = {}
        self.held: list[Any] = [None]
        self.plain, self.setting = SimpleNamespace(), {"alpha": 0.5, "moves": 0.1}
        self.register_buffer("scale", torch.tensor([1.0, 2.0]))

    def forward(self, x: Any) -> Any:
        return self.use(self, self.layer(x), x)


def loss(model: Any, x: Any) -> Any:
    return model(x).pow(2).mean()


def trained(use: Any, bridge: bool) -> tuple[list[float], Any]:
    TABLE.clear()
    torch.manual_seed(0)
    model = Net(use)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    batches = [torch.ones(k, 4) for k in (4, 4, 1, 4, 6, 1)]
    step: Any = None
    if bridge:
        step = detente.compile(model, loss, optimizer, example_batch=batches[0], quiet=True)
    losses = []
    for number, batch in enumerate(batches):
        if bridge:
            losses.append(float(step(batch)))
        else:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        if number == 1:
            model.setting["alpha"] = 0.25
        model.setting["moves"] += 0.1
        model.scale += 0.5
        model.train(number != 2)
        if number == 3 and isinstance(held := model.cache.get("w"), torch.Tensor):
            held.fill_(7.0)
    return losses, (
        str(model.cache),
        str(model.held),
        str(model.plain),
        str(TABLE),
        str(getattr(model, "w", "")),
    )


USES = (
    scale, a_setting, the_mode, one_that_grows, how_many_there_are, in_a_list, in_an_object, in_an_attribute,
    in_a_global, of_a_buffer, of_a_float_that_moves, anew_in_every_step,
)  # fmt: skip


@pytest.mark.parametrize("use", sampled(USES, 2), ids=lambda use: use.__name__)
def test_it_is_eagers_and_stands_where_eager_leaves_it(use: Any) -> None:
    losses, left = trained(use, bridge=False)
    mine, its = trained(use, bridge=True)
    assert mine == pytest.approx(losses, rel=1e-5)
    assert its == left


def test_what_is_refused_or_only_looked_at_leaves_nothing() -> None:
    from detente.bridge.capture.capture import capture
    from detente.bridge.refusal import Refused

    model = Net(scale)
    capture(model, loss, torch.ones(4, 4))
    assert model.cache == {}

    def asks(m: Any, x: Any) -> Any:
        scaled = loss(m, x)
        return scaled * float(m.layer.weight.sum())

    with pytest.raises(Refused):
        capture(model, asks, torch.ones(4, 4), keep=True)
    assert model.cache == {}
