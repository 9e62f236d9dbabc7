"""How torch itself may round: what each way changes, and that it changes no more than a rounding."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from detente.bridge.certify.eager import eager_step
from detente.bridge.certify.ways import PLAIN, WAYS, Way


def test_a_saturated_softmax_is_off_by_one_rounding_of_one_and_not_of_its_tiny_loss():
    """1 + 5e-6 has a neighbour in float32 at 1.2e-7, and the loss is its logarithm: every kernel that sums and takes
    the logarithm to one rounding may be off by 2 % of this loss, and the plain one never tells."""
    logits, label = torch.tensor([[0.0, 12.1]]), torch.tensor([1])
    exact = float(F.cross_entropy(logits.double(), label))

    def error(way):
        with way.inside():
            return abs(float(F.cross_entropy(logits, label)) - exact)

    assert error(PLAIN) < 6e-8
    far = max(error(Way(rounds=seed)) for seed in range(8))
    assert 6e-8 < far <= 3e-7


def test_a_gradient_is_rounded_in_backward_too():
    x = torch.tensor([[0.3, -1.2, 2.0]], requires_grad=True)

    def gradient(way):
        with way.inside():
            loss = torch.tanh(x).square().sum()
            return torch.autograd.grad(loss, x)[0]

    plain = gradient(PLAIN)
    others = [gradient(Way(rounds=seed)) for seed in range(4)]
    assert any(not torch.equal(plain, other) for other in others)
    for other in others:
        torch.testing.assert_close(other, plain, rtol=1e-5, atol=0)  # 1 - tanh^2 loses a digit


def test_what_is_shown_written_in_place_or_not_a_number_stays_as_it_is():
    base, count = torch.arange(6.0), torch.arange(3)
    with Way(rounds=1).inside():
        view = base.view(2, 3)
        base.add_(1.0)
        indices, ones, truth = count + 1, torch.ones(4), base > 3
        lowest = torch.zeros(8) + torch.finfo(torch.float32).min
    assert view.data_ptr() == base.data_ptr() and torch.equal(base, torch.arange(1.0, 7.0))
    assert indices.tolist() == [1, 2, 3] and bool((ones == 1).all()) and truth.dtype == torch.bool
    assert bool(lowest.isfinite().all())


@pytest.mark.parametrize("way", WAYS)
def test_a_way_is_over_when_it_is_left(way):
    before = torch.backends.mkldnn.enabled, torch.get_num_threads(), torch.tanh(torch.ones(64) / 3)
    with pytest.raises(KeyError), way.inside():
        raise KeyError("the step failed")
    assert before[:2] == (torch.backends.mkldnn.enabled, torch.get_num_threads())
    assert torch.equal(before[2], torch.tanh(torch.ones(64) / 3))


@pytest.mark.parametrize("way", WAYS)
def test_no_way_hides_what_is_more_than_roundings(way):
    """A layer norm with another epsilon, beside every way's own error."""
    torch.manual_seed(0)
    x, weight = torch.randn(16, 32), torch.nn.Parameter(torch.randn(8, 32) / 6)

    def gradient(x, weight, eps=1e-5):
        out = F.log_softmax(F.layer_norm(x, (32,), eps=eps) @ weight.T, -1)
        return torch.autograd.grad(-out[:, 0].mean(), weight)[0].double()

    exact = gradient(x.double(), weight.double().detach().requires_grad_())
    with way.inside():
        own = float((gradient(x, weight) - exact).norm())
    allowed = 4 * own + 64 * 2.0**-23 * float(exact.norm())
    assert own < 1e-5 * float(exact.norm()) and float(exact.norm()) > 0
    far = float((gradient(x.double(), weight.double().detach().requires_grad_(), 1e-3) - exact).norm())
    assert far > 10 * allowed


class Thirds(torch.optim.Optimizer):
    """An update that makes new tensors, which a way would round."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.copy_(
                    parameter - (parameter / 3 + parameter.grad * 0.7).sign() * 1e-3 - parameter / 7
                )


@pytest.mark.parametrize("way", WAYS)
def test_an_update_is_the_same_in_every_way(way):
    """An optimizer may take the sign of what is rounding alone (FOCUS does): each way around it would be one more step
    of eager's, and a wrong program may be like one of them."""

    def stepped(way):
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 5, 3, bias=False)
        optimizer = Thirds(model.parameters())
        done = eager_step(
            model,
            lambda m, b: m.weight.sum(),  # a gradient of ones, whatever rounds
            optimizer,
            torch.zeros(1),
            around=lambda: way.inside(model.parameters()),
        )
        return done.values["weight"]

    assert torch.equal(stepped(way), stepped(PLAIN)) and stepped(way).is_contiguous()
