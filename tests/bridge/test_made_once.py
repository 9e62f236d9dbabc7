"""What forward makes at its first call and finds from then on (a table in a dictionary): the first batch decides, as in
eager, whoever looks there finds it, and what somebody writes to it counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge.refusal import Refused
from tests.bridge.between.loops import eager
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


def known_by_a_length(m: Any, y: Any, x: Any) -> Any:
    """As rotary embeddings keep their tables."""
    if m.length != x.shape[1]:
        m.length = x.shape[1]
        m.w = (m.scale * x.shape[1]).cos()
    return y * m.w


def several_known_by_a_shape(m: Any, y: Any, x: Any) -> Any:
    """As grids of coordinates are kept."""
    if m.grid is None or m.length != x.shape[1:]:
        m.grid = [torch.linspace(0, 1, n + 1)[:2] for n in x.shape[1:]]
        m.length = x.shape[1:]
    return y * m.grid[0]


def known_by_an_entry(m: Any, y: Any, x: Any) -> Any:
    if m.cache.get("n") != x.shape[1]:
        m.cache |= {"n": x.shape[1], "w": torch.ones(2) * x.shape[1]}
    return y * m.cache["w"]


class Net(nn.Module):
    def __init__(self, use: Any) -> None:
        super().__init__()
        self.length: Any = None
        self.grid: Any = None
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
    step = eager(model, loss, optimizer)
    if bridge:
        step = detente.compile(model, loss, optimizer, example_batch=batches[0], quiet=True)
    losses = []
    for number, batch in enumerate(batches):
        losses.append(float(step(batch)))
        if number == 1:
            model.setting["alpha"] = 0.25
        model.setting["moves"] += 0.1
        model.scale += 0.5
        model.train(number != 2)
        held: Any = model.cache.get("w")
        if number == 3 and isinstance(held, torch.Tensor):
            held.fill_(7.0)
    return losses, (
        str(model.cache),
        str(model.held),
        str(model.plain),
        str(TABLE),
        str(getattr(model, "w", "")),
        str(model.length),
        str(model.grid),
    )


USES = (
    scale, a_setting, the_mode, one_that_grows, how_many_there_are, in_a_list, in_an_object, in_an_attribute,
    in_a_global, of_a_buffer, of_a_float_that_moves, anew_in_every_step, known_by_a_length, several_known_by_a_shape,
    known_by_an_entry,
)  # fmt: skip


@pytest.mark.parametrize("use", sampled(USES, 2), ids=lambda use: use.__name__)
def test_it_is_eagers_and_stands_where_eager_leaves_it(use: Any) -> None:
    losses, left = trained(use, bridge=False)
    mine, its = trained(use, bridge=True)
    assert mine == pytest.approx(losses, rel=1e-5)
    assert its == left


def test_another_length_than_the_table_is_of_is_refused_with_its_name() -> None:
    """Eager makes it anew whenever the length turns."""
    torch.manual_seed(0)
    model = Net(known_by_a_length)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def of(m: Any, x: Any) -> Any:
        return (m.use(m, m.layer(x[:, :4]), x)).pow(2).mean()

    step: Any = detente.compile(model, of, optimizer, example_batch=torch.ones(2, 4), quiet=True)
    step(torch.ones(2, 4))
    with pytest.raises(Refused, match=r"\[held-tensor\] w is filled by one program"):
        for _ in range(2):
            step(torch.ones(2, 5))


def test_a_table_beside_a_counter_is_nobodys_key() -> None:
    def counted(m: Any, y: Any, x: Any) -> Any:
        m.length = (m.length or 0) + 1
        if m.length < 3:
            m.w = torch.ones(2) * m.length
        return y * m.w

    losses, left = trained(counted, bridge=False)
    try:
        mine, its = trained(counted, bridge=True)
    except Refused:
        return
    assert mine == pytest.approx(losses, rel=1e-5)
    assert its == left


def test_what_is_refused_or_only_looked_at_leaves_nothing() -> None:
    from detente.bridge.capture.capture import capture

    model = Net(scale)
    capture(model, loss, torch.ones(4, 4))
    assert model.cache == {}

    def asks(m: Any, x: Any) -> Any:
        scaled = loss(m, x)
        return scaled * float(m.layer.weight.sum())

    with pytest.raises(Refused):
        capture(model, asks, torch.ones(4, 4), keep=True)
    assert model.cache == {}
