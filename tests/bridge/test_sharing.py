"""Steps that train one module together, and the warning where two only seem to."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detente import bridge

GENERATOR = torch.Generator().manual_seed(0)
REAL, NOISE = torch.randn(8, 3, generator=GENERATOR) + 2, torch.randn(8, 4, generator=GENERATOR)
BATCH = (REAL.double(), NOISE.double())


def gan(layers=1):
    torch.manual_seed(0)
    middle = [
        part for _ in range(layers) for part in (nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh())
    ]
    return nn.ModuleDict(
        {
            "g": nn.Sequential(nn.Linear(4, 16), nn.Tanh(), *middle, nn.Linear(16, 3)),
            "d": nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)),
        }
    ).double()


def judge(m, batch):
    real, noise = batch
    return F.softplus(-m["d"](real)).mean() + F.softplus(m["d"](m["g"](noise).detach())).mean()


def fool(m, batch):
    return F.softplus(-m["d"](m["g"](batch[1]))).mean()


def eager(model, turns, optimizers, count):
    losses = []
    for _ in range(count):
        for loss, optimizer in zip(turns, optimizers, strict=True):
            optimizer.zero_grad()
            value = loss(model, BATCH)
            value.backward()
            optimizer.step()
            losses.append(float(value.detach()))
    return losses


def adam(part):
    return torch.optim.Adam(part.parameters(), lr=0.05)


def pair(model, share=True, **options):
    first = bridge.compile(model, judge, adam(model["d"]), example_batch=BATCH, **options)
    second = bridge.compile(
        model, fool, adam(model["g"]), example_batch=BATCH, share=first if share else None, **options
    )
    return first, second


def test_a_gan_trains_as_in_eager():
    model = gan()
    other = copy.deepcopy(model)
    expected = eager(other, (judge, fool), (adam(other["d"]), adam(other["g"])), 4)
    steps = pair(model, certificate="full")
    found = [float(step(BATCH)) for _ in range(4) for step in steps]
    assert found == pytest.approx(expected, rel=1e-9)
    assert all(step.settled().ok for step in steps)
    steps[0].sync_to_torch()  # the generator, which the other step trained, and its running statistics, too
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-9, atol=1e-12)
    assert float(steps[1](BATCH)) > 0  # the write to the live module was the group's own


def test_a_part_and_the_whole_in_rolled_form():
    model = gan(layers=8)
    other = copy.deepcopy(model)

    def small(m, batch):
        return m(batch[1]).pow(2).mean()

    turns = (fool, lambda m, batch: small(m["g"], batch))
    expected = eager(other, turns, (adam(other["g"]), torch.optim.SGD(other["g"].parameters(), lr=0.1)), 3)
    first = bridge.compile(
        model, fool, adam(model["g"]), example_batch=BATCH, certificate="none", form="rolled"
    )
    part = model["g"]
    second = bridge.compile(
        part,
        small,
        torch.optim.SGD(part.parameters(), lr=0.1),
        example_batch=BATCH,
        certificate="none",
        share=first,
    )
    found = [float(step(BATCH)) for _ in range(3) for step in (first, second)]
    assert found == pytest.approx(expected, rel=1e-9)


def test_one_optimizer_of_two_losses_has_one_state():
    model = gan()
    other = copy.deepcopy(model)
    theirs = adam(other)
    expected = eager(other, (judge, fool), (theirs, theirs), 3)
    optimizer = adam(model)
    first = bridge.compile(model, judge, optimizer, example_batch=BATCH, certificate="none")
    second = bridge.compile(model, fool, optimizer, example_batch=BATCH, certificate="none", share=first)
    found = [float(step(BATCH)) for _ in range(3) for step in (first, second)]
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_step_that_joins_later_begins_where_the_others_are():
    model = gan()
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = bridge.compile(model, judge, adam(model["d"]), example_batch=BATCH, certificate="none")
    before = float(first(BATCH))
    second = bridge.compile(
        model, judge, adam(model["d"]), example_batch=BATCH, certificate="none", share=first
    )
    assert float(second(BATCH)) < before
    second.restart(initial)
    assert float(first(BATCH)) == pytest.approx(before, rel=1e-9)  # new values of one are the group's


def test_taking_turns_without_sharing_warns_once():
    first, second = pair(gan(), share=False, certificate="none")
    with pytest.warns(UserWarning, match=r"[dg]\.\d\.\w+ is trained by another step.*share="):
        for _ in range(3):
            first(BATCH), second(BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first(BATCH), second(BATCH)


def test_one_after_the_other_warns_where_the_second_was_made_before():
    """It begins with what it copied then, and what the first trained is lost on it."""
    first, second = pair(gan(), share=False, certificate="none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first(BATCH), first(BATCH)
    with pytest.warns(UserWarning, match=r"[dg]\.\d\.\w+ is trained by another step.*share=.*deepcopy"):
        second(BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second(BATCH)


def test_one_after_the_other_does_not_warn_where_the_second_was_made_later():
    model = gan()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = bridge.compile(model, judge, adam(model["d"]), example_batch=BATCH, certificate="none")
        first(BATCH)
        second = bridge.compile(model, fool, adam(model["g"]), example_batch=BATCH, certificate="none")
        second(BATCH), second(BATCH)


def test_steps_of_copies_do_not_warn():
    model = gan()
    first, second = (pair(m, share=False, certificate="none")[0] for m in (model, copy.deepcopy(model)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first(BATCH), second(BATCH), first(BATCH), second(BATCH)


def test_of_two_that_share_nothing_the_one_that_ran_last_answers_every_read():
    """The other one's values are older, and stay its own: a second read was given them."""
    model = gan()
    first, second = pair(model, share=False, certificate="none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first(BATCH), second(BATCH), second(BATCH)
    weight = model["g"][0].weight
    reads = [float(weight.norm()) for _ in range(3)]
    wanted = float(second.state_dict()["g.0.weight"].norm())
    assert reads == [wanted] * 3
    assert float(first.state_dict()["g.0.weight"].norm()) != wanted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first(BATCH)
    assert float(weight.norm()) == float(first.state_dict()["g.0.weight"].norm()) != wanted


def test_another_module_is_refused():
    model = gan()
    first = bridge.compile(model, judge, adam(model["d"]), example_batch=BATCH, certificate="none")
    with pytest.raises(ValueError, match="no parameter or buffer in common"):
        bridge.compile(
            other := gan(), fool, adam(other["g"]), example_batch=BATCH, certificate="none", share=first
        )


@pytest.mark.parametrize("certificate", ["full", "none"])
def test_two_modules_each_of_which_the_others_loss_holds(certificate):
    def run(bridged):
        whole = gan(layers=0)  # a batch norm that a loss holds is refused
        g, d = whole["g"], whole["d"]
        turns = (
            (d, lambda m, b: F.softplus(-m(b[0])).mean() + F.softplus(m(g(b[1]).detach())).mean()),
            (g, lambda m, b: F.softplus(-d(m(b[1]))).mean()),
        )
        if not bridged:
            losses = []
            optimizers = [adam(m) for m, _ in turns]
            for _ in range(4):
                for (m, loss), optimizer in zip(turns, optimizers, strict=True):
                    g.zero_grad(), d.zero_grad()
                    value = loss(m, BATCH)
                    value.backward()
                    optimizer.step()
                    losses.append(float(value.detach()))
            return losses
        first = None
        steps = []
        for m, loss in turns:
            first = bridge.compile(
                m, loss, adam(m), example_batch=BATCH, certificate=certificate, share=first
            )
            steps.append(first)
        found = [float(step(BATCH)) for _ in range(4) for step in steps]
        assert certificate == "none" or all(step.settled().ok for step in steps)
        return found

    assert run(True) == pytest.approx(run(False), rel=1e-9)


def test_an_actor_shares_with_the_critic_that_its_loss_holds():
    def run(bridged):
        torch.manual_seed(0)
        actor = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()
        critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        taken, states = torch.linspace(-1, 1, 16).reshape(8, 2).double(), BATCH[0]

        def judged(m, batch):
            return (m(torch.cat([batch, taken], 1)).squeeze(1) - 1).square().mean()

        def praised(m, batch):
            return -critic(torch.cat([batch, m(batch)], 1)).mean()

        steps, first = [], None
        for m, loss in ((critic, judged), (actor, praised)):
            if bridged:
                first = bridge.compile(
                    m, loss, adam(m), example_batch=states, certificate="full", share=first
                )
                steps.append(first)
            else:
                steps.append(_eager_step(m, loss, adam(m), (actor, critic)))
        return [float(step(states)) for _ in range(4) for step in steps]

    assert run(True) == pytest.approx(run(False), rel=1e-9)


def _eager_step(model, loss, optimizer, all_of_them):
    def step(batch):
        for m in all_of_them:
            m.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


@pytest.mark.parametrize("name", ["the second begins later", "an average of one of them"])
def test_two_losses_of_one_optimizer_whose_states_have_other_leaves(name):
    late = name == "the second begins later"

    def run(bridged):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        optimizer = (
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            if late
            else torch.optim.Adam(model.parameters(), lr=0.01)
        )
        losses = [lambda m, b: m(b).square().mean(), lambda m, b: (m(b) - 1).square().mean()]
        kept = {"example_batch": BATCH[0], "certificate": "none"}
        if not bridged:
            first, second = (_eager_step(model, loss, optimizer, (model,)) for loss in losses)
        else:
            options = {} if late else {"ema": 0.9}
            first = bridge.compile(model, losses[0], optimizer, **kept, **options)
            second = None if late else bridge.compile(model, losses[1], optimizer, share=first, **kept)
        found = [float(first(BATCH[0])) for _ in range(3 if late else 0)]
        if bridged and second is None:
            second = bridge.compile(model, losses[1], optimizer, share=first, **kept)
        return found + [float(step(BATCH[0])) for _ in range(4) for step in (first, second)]

    assert run(True) == pytest.approx(run(False), rel=1e-9)


def test_a_group_goes_with_its_last_name():
    first, second = pair(gan(), certificate="none")
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is not None  # the discriminator's newest values are its own
    del second
    gc.collect()
    assert gone() is None


class Twofold(nn.Module):
    """Two heads on one body."""

    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)


@pytest.mark.parametrize("begun", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.Adagrad, lambda p, lr: torch.optim.SGD(p, lr, 0.9, dampening=0.5)]
)
def test_two_heads_of_one_optimizer_in_turns(kind, begun):
    """The second step's certificate began without the moments that the first had left there; and where the table of the
    optimizer held tensors at compile, what one step wrote into them was somebody's hidden write for the other."""

    def run(bridged):
        torch.manual_seed(0)
        model = Twofold().double()
        optimizer = kind(model.parameters(), lr=0.05)
        losses = [
            lambda m, b: m.left(torch.tanh(m.body(b))).square().mean(),
            lambda m, b: (m.right(torch.tanh(m.body(b))) - 1).square().mean(),
        ]
        steps = [_eager_step(model, loss, optimizer, (model,)) for loss in losses]
        for step in steps if begun else ():
            step(BATCH[0])
        if bridged:
            model.zero_grad()
            kept = {"example_batch": BATCH[0], "cache": False}
            first = bridge.compile(model, losses[0], optimizer, **kept)
            steps = [first, bridge.compile(model, losses[1], optimizer, share=first, **kept)]
        found = [float(steps[turn](BATCH[0])) for turn in (0, 1, 0, 0, 1, 1, 0)]
        return [*found, *(float(p.detach().sum()) for p in model.parameters())]

    assert run(True) == pytest.approx(run(False), rel=1e-7)
