"""Another answer to what Python asks of values is another program, found before the step runs."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detente import bridge
from detente.bridge.step import variants


class Asking(nn.Module):
    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("bank", torch.zeros(6, 3))
        self.register_buffer("mean", torch.zeros(3))
        self.own = forward

    def forward(self, x):
        return self.own(self, x)


def loss(model, batch):
    return model(batch).square().mean()


def pairs(model, batch):
    """Metric learning: pairs of one class, as many as the labels have."""
    x, labels = batch
    one, other = torch.where(torch.triu(labels[:, None] == labels[None], 1))
    out = model.body(x)
    if len(one) < 1:
        return out.sum() * 0
    return F.mse_loss(out[one], out[other])


def starts(model, x):
    """A flag that the first step sets: what starts from the first batch."""
    out = model.body(x)
    if not model.ready:
        model.mean.copy_(out.detach().mean(0))
        model.ready.fill_(True)
    model.mean.mul_(0.9).add_(out.detach().mean(0), alpha=0.1)
    return out - model.mean


def banks(model, x):
    """A ring of features with its place in a buffer."""
    out = model.body(x)
    place = int(model.count)
    model.bank[place : place + 2] = out[:2].detach()
    model.count.fill_((place + 2) % 6)
    return out - model.bank.mean(0)


def counts(model, x):
    model.count += 1
    out = model.body(x)
    return out * 2 if model.count % 2 == 0 else out


def steps_of_time(model, x):
    """torchdiffeq's grid: as many steps as a length of time has, by a float."""
    many = torch.ceil(x.abs().max() / 0.5).item()
    out = model.body(x)
    for time in torch.arange(0, many):
        out = out + 0.1 * time * torch.tanh(out)
    return out


def trained(kind, given, steps=6, **options):
    """(losses, state) of eager torch and of the compiled step."""
    found = []
    for compiled in (False, True):
        model = Asking(kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        asked = pairs if kind is pairs else loss
        losses = []
        if compiled:
            step = bridge.compile(model, asked, optimizer, example_batch=given(0), cache=False, **options)
            losses = [float(step(given(number))) for number in range(steps)]
            step.sync_to_torch()
        else:
            for number in range(steps):
                optimizer.zero_grad()
                value = asked(model, given(number))
                value.backward()
                optimizer.step()
                losses.append(float(value.detach()))
        found.append((losses, {n: t.clone() for n, t in model.state_dict().items()}))
    return (*found, step)


def noise(number):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(number))


def labelled(number):
    """As many pairs as ``number % 5`` says: 0, 1, 3, 6 or 10."""
    labels = torch.arange(5)
    labels[: number % 5 + 1] = 0
    return noise(number), labels


@pytest.mark.parametrize(
    ("kind", "given", "programs"),
    [
        (pairs, labelled, 0),
        (starts, noise, 2),
        (banks, noise, 3),
        (counts, noise, 2),
        (steps_of_time, noise, 0),
    ],
)
def test_every_answer_has_its_program(kind, given, programs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, ours, step = trained(kind, given)
    torch.testing.assert_close(ours[0], eager[0], rtol=1e-5, atol=1e-6)
    for name, tensor in eager[1].items():
        torch.testing.assert_close(ours[1][name], tensor, rtol=1e-5, atol=1e-6)
    assert len(step.programs) == programs if programs else len(step.programs) > 1
    assert all(c is None or c.ok for c in step.certificates)


def test_a_batch_of_before_takes_its_program_again():
    model = Asking(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one, other = labelled(0), labelled(1)
    step = bridge.compile(model, pairs, optimizer, example_batch=one, cache=False, certificate="none")
    for batch in (one, other, one, other):
        float(step(batch))
    assert len(step.programs) == 2


def test_what_new_answers_cost_is_said_once():
    model = Asking(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(model, pairs, optimizer, example_batch=labelled(0), cache=False, certificate="none")
    with pytest.warns(UserWarning, match="every new answer is captured and compiled again, about") as told:
        for number in range(9):
            float(step(labelled(number)))
    assert len(told) == 1


def test_too_many_answers_are_refused_with_their_line(monkeypatch):
    monkeypatch.setattr(variants, "ANSWERS", 1)
    model = Asking(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(model, pairs, optimizer, example_batch=labelled(0), cache=False, certificate="none")
    float(step(labelled(0)))
    with pytest.raises(bridge.Refused, match="more than 1 answers") as raised:
        step(labelled(1))
    assert raised.value.reasons[0].where.code.startswith("one, other = torch.where")
    float(step.eager(labelled(1)))  # which takes it, and the step goes on from there
    float(step(labelled(0)))


def test_a_buffer_that_somebody_writes_between_steps_is_asked_again():
    model = Asking(starts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(model, loss, optimizer, example_batch=noise(0), cache=False, certificate="none")
    for number in range(2):
        float(step(noise(number)))
    model.ready.fill_(False)
    float(step(noise(2)))
    assert bool(model.ready)
    out = Asking(starts)
    out.load_state_dict(step.state_dict())
    assert len(step.programs) == 2


def test_answers_come_from_the_trained_state():
    """The second program is captured while the live module is behind."""

    def grows(model, x):
        model.count += 1
        return model.body(x) * int(model.count)

    eager, ours, step = trained(grows, noise, steps=4)
    torch.testing.assert_close(ours[0], eager[0], rtol=1e-5, atol=1e-6)
    assert len(step.programs) == 4


def test_a_stored_program_of_other_answers_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    for first in (0, 1, 0):
        model = Asking(None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = bridge.compile(model, pairs, optimizer, example_batch=labelled(first), certificate="none")
        expected = pairs(model, labelled(first)).detach()
        torch.testing.assert_close(step(labelled(first)).wait(), expected)


class Later(nn.Module):
    """The first question settles, the second asks for a weight."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x):
        if x.isnan().any():
            x = x.nan_to_num()
        out = self.body(x)
        if out.sum() > 0:  # this one
            out = out * 2
        return out[out > -1e9]  # and this one


def test_the_line_told_is_the_one_that_stands_in_the_way():
    found = bridge.check(Later(), loss, torch.randn(5, 4))
    assert [reason.code for reason in found] == ["control-flow", "dynamic-shape"]
    assert [reason.where.code.partition("#")[0].strip() for reason in found] == [
        "if out.sum() > 0:",
        "return out[out > -1e9]",
    ]
    assert all("depends on parameter body." in reason.what for reason in found)


def test_what_stands_in_the_way_of_the_second_capture_is_told():
    def mixed(model, x):
        if x.isnan().any():
            x = x.nan_to_num()
        out = model.body(x)
        return [out, -out][int((out[0, 0].detach() * 1.5).item())]

    found = bridge.check(Asking(mixed), loss, torch.randn(5, 4))
    assert len(found) == 1 and found[0].where.code.startswith("return [out, -out]")


class Kept:
    pass


def keeps(model, x):
    model.kept.inner.seen = x * 2
    out = model.body(x)
    return out * 2 if x.sum() > -1e9 else out


def test_a_module_whose_attribute_holds_a_result_can_be_asked():
    """stable-baselines3 keeps computed tensors in an object that is no module, and writes one before it asks."""
    model = Asking(keeps)
    model.kept = Kept()
    model.kept.inner = Kept()
    model.kept.inner.seen = None
    model.kept.inner.last = {"out": [model.body(torch.ones(1, 4))]}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(model, loss, optimizer, example_batch=noise(0), cache=False)
    for number in range(2):
        float(step(noise(number)))
    assert step.certificate.ok


def test_a_number_of_the_program_picks_an_element(same_function):
    """torchcde's interpolation: x[index] with an index of no dimensions, from values."""

    def picked(model, x):
        out = model.body(x)
        return out[(x > 0).sum() % 5].sum() + out[:, -(x < 0).sum() % 3 - 3].square().sum()

    same_function(Asking(None), picked, noise(0))


def test_a_number_of_the_program_out_of_range_raises():
    model = Asking(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def picked(model, x):
        return model.body(x)[(x > 0).sum()].sum()

    given = torch.tensor([[1.0, -1, 1, -1]] * 5) * torch.tensor([[1.0], [-1], [0], [0], [0]])
    step = bridge.compile(model, picked, optimizer, example_batch=given, cache=False, certificate="none")
    float(step(given))
    with pytest.raises(IndexError, match="out of range for 5"):
        float(step(given.abs() + 1))


def test_a_mask_without_a_true_writes_nothing() -> None:
    """As splines do with what lies outside of their interval (nflows)."""

    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            out, mask = torch.zeros_like(y), x > 100.0
            out[mask] = y[mask] * 2
            return out + y

    theirs, mine = Outside(), Outside()
    plain, optimizer = (torch.optim.SGD(m.parameters(), lr=1e-3) for m in (theirs, mine))
    x = torch.linspace(-1, 1, 12).view(4, 3)
    far = x.clone()
    far[0, 0] = far[2, 1] = 101.0
    step = bridge.compile(mine, lambda m, b: m(b).tanh().mean(), optimizer, example_batch=x, cache=False)
    for batch in (x, x, far, x, far):
        plain.zero_grad()
        value = theirs(batch).tanh().mean()
        value.backward()
        plain.step()
        assert float(step(batch)) == pytest.approx(float(value.detach()), rel=1e-5)


def columns(model, x):
    """A list of Python's out of a constant, and one out of the batch."""
    x, picked = x
    return model.body(x).sum(torch.arange(0, 1).tolist())[picked.tolist()[1]]


def test_a_list_of_what_is_known_is_a_list(same_function) -> None:
    picked = torch.tensor([[0, 1], [2, 0]])
    same_function(
        Asking(columns), loss, (torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), picked)
    )
