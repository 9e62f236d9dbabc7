"""Tensors that a step keeps for the next one outside of buffers: read there, the step is refused; unread, they are
nobody's business. Before, containers, variables and attributes of the loss were forgotten: certified in the first step,
and another training from the second on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.capture.capture import capture

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
TABLE: dict[str, torch.Tensor | None] = {"last": None}
LAST: torch.Tensor | None = None


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(5, 5)
        self.pair, self.table, self.rows = None, {}, [None]
        self.space, self.nested = SimpleNamespace(last=None), {"a": {"b": None}}


def mixed(y, last):
    return y.pow(2).mean() + (0 if last is None else (last * y).mean())


def a_tuple(model, y):
    value = mixed(y, model.pair and model.pair[0])
    model.pair = (y.detach(), 1)
    return value


def a_new_key(model, y):
    value = mixed(y, model.table.get("last"))
    model.table["last"] = y.detach()
    return value


def an_item(model, y):
    value = mixed(y, model.rows[0])
    model.rows[0] = y.detach()
    return value


def an_attribute(model, y):
    value = mixed(y, model.space.last)
    model.space.last = y.detach()
    return value


def a_nested_one(model, y):
    value = mixed(y, model.nested["a"]["b"])
    model.nested["a"]["b"] = y.detach()
    return value


def a_table_of_the_module(model, y):
    value = mixed(y, TABLE["last"])
    TABLE["last"] = y.detach()
    return value


def a_global(model, y):
    global LAST  # noqa: PLW0603  (what is tried)
    value = mixed(y, LAST)
    LAST = y.detach()
    return value


def of_a_function(model, y):
    value = mixed(y, getattr(of_a_function, "last", None))
    of_a_function.last = y.detach()
    return value


def closure():
    last = None

    def a_variable(model, y):
        nonlocal last
        value = mixed(y, last)
        last = y.detach()
        return value

    return a_variable


KEEPING = [
    a_tuple,
    a_new_key,
    an_item,
    an_attribute,
    a_nested_one,
    a_table_of_the_module,
    a_global,
    of_a_function,
    closure(),
]


@pytest.mark.parametrize("keep", KEEPING, ids=lambda keep: keep.__name__)
def test_what_the_next_step_reads_is_refused(keep):
    found = bridge.check(Keeps(), lambda m, x: keep(m, m.linear(x)), X)
    assert [reason.code for reason in found] == ["held-tensor"], found
    assert TABLE == {"last": None} and LAST is None and not hasattr(of_a_function, "last")


def test_what_nobody_reads_trains_and_leaves_nothing_of_the_trace():
    seen: dict[str, torch.Tensor] = {}

    def loss(model, x):
        y = model.linear(x)
        seen["y"], model.pair = y.detach(), (y, y.detach())
        return y.pow(2).mean()

    model = Keeps()
    step = bridge.compile(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=X, cache=False
    )
    assert not seen and model.pair is None
    for _ in range(3):
        step(X)
    assert step.certificate is not None and step.certificate.ok


CACHES = {
    "positions": (lambda model, x: torch.arange(5.0), True),
    "in a tuple": (lambda model, x: (torch.arange(5.0), "positions"), True),
    "the first batch": (lambda model, x: x.detach().mean(0), False),
    "the first weights": (lambda model, x: model.linear.weight.detach().mean(0), False),
    "a draw": (lambda model, x: torch.rand(5), False),
}


@pytest.mark.parametrize("name", CACHES)
def test_what_a_first_call_keeps_may_follow_from_nothing_that_moves(name):
    """A cache is found by the next step in eager: it must be what that would make, too."""
    make, runs = CACHES[name]

    def loss(model, x):
        if "kept" not in model.table:
            model.table["kept"] = make(model, x)
        kept = model.table["kept"]
        return (model.linear(x) * (kept[0] if isinstance(kept, tuple) else kept)).pow(2).mean()

    ours, theirs = Keeps(), Keeps()
    found = bridge.check(ours, loss, X)
    assert [reason.code for reason in found] == ([] if runs else ["held-tensor"]), found
    if not runs:
        return
    step = bridge.compile(
        ours, loss, torch.optim.SGD(ours.parameters(), lr=0.1), example_batch=X, cache=False
    )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for i in range(3):
        optimizer.zero_grad()
        wanted = loss(theirs, X + i)
        wanted.backward()
        optimizer.step()
        assert float(step(X + i)) == pytest.approx(float(wanted.detach()), rel=1e-5)


RECURRENT = {
    "LSTM": lambda layer, x, h: layer(x, None if h is None else (h, h)),
    "GRU": lambda layer, x, h: layer(x, h),
    "RNN": lambda layer, x, h: layer(x, h),
}


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.out, self.state = getattr(nn, kind)(5, 3), nn.Linear(3, 1), None
        self.run, self.reads = RECURRENT[kind], True

    def forward(self, x):
        y, state = self.run(self.layer, x[None], self.state if self.reads else None)
        self.state = (state[0] if isinstance(state, tuple) else state).detach()
        return self.out(y)


@pytest.mark.parametrize("kind", RECURRENT)
def test_the_weights_of_a_recurrent_layer_are_not_kept_between_steps(kind):
    """Its list of weights is made anew where they are other objects, as they are in a trace alone."""
    model = Recurrent(kind)
    reasons = bridge.check(model, lambda m, x: m(x).pow(2).mean(), X)
    assert [reason.what.split(",")[0] for reason in reasons] == ["forward keeps a tensor in state"]
    model.reads = False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(model, lambda m, x: m(x).pow(2).mean(), optimizer, example_batch=X, cache=False)
    step(X)
    assert [kept.name for kept in step.programs[0].captured.kept] == ["state"]
    assert model.state.shape == (1, 4, 3)
    step.sync_to_torch()
    own = dict(model.layer.named_parameters())
    assert all(a is own[n] for a, n in zip(model.layer._flat_weights, own, strict=True))


@pytest.mark.parametrize("start", [0.0, 1.5, None], ids=str)
@pytest.mark.parametrize("share", [1.0, 0.1], ids=["a sum", "an average"])
def test_a_number_that_follows_from_the_one_before_is_refused(start, share):
    """``self.total += loss.item()``: a step left what the first one had found there, and this loss."""

    class Sums(nn.Linear):
        total = start

    def loss(model, x):
        found = model(x).square().mean()
        before = model.total if model.total is not None else 0.0
        model.total = (1 - share if share < 1 else 1) * before + share * found.item()
        return found

    model = Sums(4, 3)
    with pytest.raises(bridge.Refused, match=r"a number of a tensor's in model.*total"):
        capture(model, loss, torch.ones(2, 4), keep=True)
    assert model.total == start
