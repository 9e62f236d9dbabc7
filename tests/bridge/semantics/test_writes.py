"""In-place writes, through every view; buffers of every kind; tied weights; train and eval."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detente import bridge
from tests.sampled import sampled

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def loss(model, batch):
    return model(batch)


class Writer(nn.Module):
    def __init__(self, write, plain=False):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)
        self.write, self.plain = write, plain

    def forward(self, x):
        y = self.linear(x)
        if self.plain:
            held = y.detach().clone()
            self.write(held)
            return (y * held).sum()
        self.write(y)
        return (y * torch.arange(1, 25, dtype=y.dtype).reshape(4, 6)).sum() + y.pow(2).sum()


WRITES = {
    "itself": lambda y: y.mul_(2),
    "view": lambda y: y.view(-1)[0].fill_(7),
    "transpose": lambda y: y.t()[1].mul_(3),
    "chunk": lambda y: y.chunk(2, dim=1)[1].add_(1),
    "diagonal": lambda y: y.diagonal().zero_(),
    "boolean mask, one value": lambda y: y.__setitem__(y > 0, 0.5),
    "boolean mask over rows, a row each": lambda y: y.__setitem__(
        torch.tensor([True, False, True, True]), torch.arange(18, dtype=y.dtype).reshape(3, 6)
    ),
    "boolean mask over rows, one row": lambda y: y.__setitem__(
        torch.tensor([False, True, False, True]), torch.arange(6, dtype=y.dtype)
    ),
    "unfold": lambda y: y.unfold(1, 2, 2)[:, 0].mul_(5),
    "narrow": lambda y: y.narrow(0, 1, 2).sub_(4),
    "index": lambda y: y.__setitem__((slice(None), torch.tensor([0, 2])), 1.5),
    "mask": lambda y: y.masked_fill_(y > 0, 0.25),
    "select of split": lambda y: y.split(3, dim=1)[0].select(0, 2).exp_(),
    "as seen before": lambda y: (v := y.view(24), y.mul_(2), v[3].add_(1)),
    "copy": lambda y: y[1:3].copy_(y[0:2].clone()),
    "index_add": lambda y: y.index_add_(0, torch.tensor([0, 0, 3]), torch.ones(3, 6, dtype=y.dtype)),
}


MULTIPLE = ("chunk", "select of split")  # torch forbids these writes on a tensor that carries a gradient


@pytest.mark.parametrize("name", sampled([n for n in WRITES if n not in MULTIPLE], 2))
def test_write_reaches_the_base(name, same_function):
    same_function(Writer(WRITES[name]), loss, X, steps=1)


@pytest.mark.parametrize("name", [*MULTIPLE, "transpose", "unfold"])
def test_write_reaches_the_base_of_a_plain_tensor(name, same_function):
    same_function(Writer(WRITES[name], plain=True), loss, X, steps=1)


@pytest.mark.parametrize("name", MULTIPLE)
def test_what_torch_forbids_is_refused(name):
    model = Writer(WRITES[name])
    with pytest.raises(bridge.Refused, match="multiple views"):
        bridge.compile(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=X)


class Buffers(nn.Module):
    """Written in place, rebound, counted in integers, and not persistent."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(4, 6), persistent=False)

    def forward(self, x):
        y = self.norm(self.linear(x))
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * y.mean(0))
                self.steps += 1
                self.cache[1:3].copy_(y[:2])
        weight = torch.arange(24, dtype=y.dtype).reshape(4, 6)
        return (weight * (y - self.mean) ** 2).sum() / 24 + self.cache.sum() * self.steps


def test_every_written_buffer_advances(same_function):
    step = same_function(Buffers(), loss, X)
    assert int(step.state_dict()["steps"]) == 3
    assert "cache" not in step.state_dict()
    assert float(step.values()["cache"].sum()) != 0


def test_train_and_eval_are_two_programs():
    model = Buffers()
    step = bridge.compile(model, loss, torch.optim.SGD(model.parameters(), lr=0.0), example_batch=X)
    step(X), step(X)
    model.eval()
    before = step.state_dict()
    step(X)
    assert len(step.programs) == 2
    after = step.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    model.train()
    step(X)
    assert len(step.programs) == 2 and int(step.state_dict()["steps"]) == 3


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))

    def forward(self, ids):
        return nn.functional.cross_entropy(self.head(self.spectral(self.embed(ids))), ids)


def test_tied_weights_are_one_tensor(same_function):
    step = same_function(Tied(), loss, torch.tensor([0, 3, 6, 3]))
    assert step.programs[0].captured.weights.aliases == {"head.weight": "embed.weight"}
    state = step.state_dict()
    assert torch.equal(state["head.weight"], state["embed.weight"])


HIDDEN = {
    "clamp_": lambda y: y.clamp_(-0.1, 0.2),
    "several": lambda y: y.mul_(2).add_(1).relu_(),
    "copy_": lambda y: y.copy_(y.detach().round()),  # straight through
}


class Hidden(nn.Module):
    """Writes under no_grad what carries a gradient: the value changes and the gradient does not."""

    def __init__(self, write):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.write = nn.Linear(6, 6), write

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.write(y)
        return y.pow(2).sum() + y.sin().sum()


@pytest.mark.parametrize("name", HIDDEN)
def test_a_write_under_no_grad_keeps_the_gradient(name, same_function):
    same_function(Hidden(HIDDEN[name]), loss, X)


@pytest.mark.parametrize(
    "view", [lambda y: y.view_as(y), lambda y: y[1], lambda y: y.t(), lambda y: y.detach()]
)
def test_a_write_under_no_grad_through_a_view_is_refused(view):
    model = Hidden(lambda y: view(y).sub_(0.5))
    assert [reason.code for reason in bridge.check(model, loss, X)] == ["no-grad-inplace"]


def test_a_write_to_data_is_refused_by_line():
    def hidden(model, x):
        y = model(x)
        y.data.mul_(2)
        return y.pow(2).sum()

    (reason,) = bridge.check(nn.Linear(6, 6), hidden, X)
    assert reason.code == "no-grad-inplace" and reason.where.file == __file__


def test_a_write_to_a_detached_tensor_is_refused():
    def hidden(model, x):
        y = model(x)
        y.detach().t()[0].mul_(2)
        return y.pow(2).sum()

    assert [reason.code for reason in bridge.check(nn.Linear(6, 6), hidden, X)] == ["no-grad-inplace"]


STATISTICS = {
    "BatchNorm with a cumulative mean": lambda: nn.BatchNorm2d(3, momentum=None),
    "the same without weights": lambda: nn.BatchNorm2d(3, momentum=None, affine=False),
    "InstanceNorm with running statistics": lambda: nn.InstanceNorm2d(
        3, affine=True, track_running_stats=True
    ),
    "the same, without momentum": lambda: nn.InstanceNorm2d(3, momentum=None, track_running_stats=True),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_running_statistics_that_export_cannot_follow(name, same_function):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), STATISTICS[name]())
    images = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    step = same_function(model, lambda m, x: m(x).sin().mean(), images)
    moved = step.values()["1.running_mean"]
    assert float(abs(torch.as_tensor(moved)).sum()) > 0 or "without momentum" in name
