"""Eager torch under the twin draws what the compiled program draws: masks and losses agree with dropout on."""

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from detente.bridge.capture.capture import capture
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.program.program import Program
from detente.bridge.random import twin
from detente.bridge.random.keys import step_key

SEED, COUNT = 11, 4


def compiled(module, x):
    """The module's outputs (as aux) by the bridge, and the gradient of their sum."""

    def loss(model, batch):
        out = model(batch)
        return sum(o.float().sum() for o in out), out

    captured = capture(module, loss, x)
    program = Program(captured.graph)
    values = {
        n: t.detach().numpy()
        for n, t in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items()
    }
    with torch_numerics():
        key = step_key(np.uint32(SEED), np.uint32(COUNT))
        if program.connected:
            (_, (aux, _, _)), grads = jax.jit(program.gradients(program.connected))(values, [x.numpy()], key)
        else:
            (_, (aux, _, _)), grads = jax.jit(program.forward)(values, [x.numpy()], key), {}
    return [np.asarray(a) for a in aux], grads


def eager(module, x):
    module.zero_grad(set_to_none=True)
    with twin(SEED, COUNT) as mode:
        out = module(x)
        total = sum(o.float().sum() for o in out)
        if total.requires_grad:
            total.backward()
    grads = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    return [o.detach().numpy() for o in out], grads, mode


def agree(module, x, rtol=1e-6):
    want, wanted, _ = eager(module, x)
    got, grads = compiled(module, x)
    for place, (a, b) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6, err_msg=f"output {place}")
    assert set(grads) == set(wanted)
    for name in wanted:
        np.testing.assert_allclose(grads[name], wanted[name], rtol=1e-4, atol=1e-5)
    return want


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout2d": lambda x: F.dropout2d(x[None], 0.5)[0],
    "alpha": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "feature_alpha": lambda x: F.feature_alpha_dropout(x[None], 0.2, training=True)[0],
    "rrelu": lambda x: F.rrelu(x, training=True),
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "bernoulli_p": lambda x: torch.empty_like(x).bernoulli_(0.7),
    "rand_like": torch.rand_like,
    "rand": lambda x: torch.rand(x.shape) * x,
    "uniform": lambda x: torch.zeros_like(x).uniform_(-2.0, 3.0),
    "randn_like": torch.randn_like,
    "normal": lambda x: torch.zeros_like(x).normal_(1.0, 2.0),
    "randint": lambda x: torch.randint(3, 17, (5, 5)).float(),
    "randperm": lambda x: torch.randperm(40).float(),
    "exponential": lambda x: torch.zeros_like(x).exponential_(2.0),
    "gumbel": lambda x: F.gumbel_softmax(x, tau=0.7),
    "multinomial": lambda x: torch.multinomial(torch.softmax(x[0], -1), 3, replacement=True).float(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.2),
}


class Every(nn.Module):
    """Each kind of draw once, in one program: its ordinal depends on all before it."""

    def forward(self, x):
        return tuple(draw(x) for draw in DRAWS.values())


def test_each_kind_of_draw():
    agree(Every(), torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1)))


class Block(nn.Module):
    """Dead draws, an eval-mode dropout, p = 0, several kinds: the ordinals must still line up."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.off = nn.Dropout(0.0)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)

    def forward(self, x):
        x = F.dropout(self.first(x), 0.4)
        torch.rand(3)  # drawn and thrown away
        x = self.off(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return (F.dropout(self.second(x), 0.1) * torch.rand_like(x),)


def test_ordinals_follow_eager_order():
    torch.manual_seed(0)
    agree(Block(), torch.randn(2, 5, 8))


def test_recurrent_dropout():
    torch.manual_seed(0)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 6, num_layers=3, dropout=0.4, batch_first=True)

        def forward(self, x):
            return (F.dropout(self.lstm(x)[0], 0.2),)

    agree(Recurrent(), torch.randn(2, 5, 8), rtol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [True, False])
def test_a_recomputed_region_repeats_its_numbers(reentrant, preserve):
    torch.manual_seed(0)
    inner, last = nn.Linear(8, 8), nn.Linear(8, 8)

    def body(x):
        return F.dropout(torch.tanh(F.dropout(inner(x), 0.5)), 0.5)

    def run(recompute):
        inner.zero_grad()
        x = torch.ones(4, 8, requires_grad=True)
        with twin(SEED, COUNT) as mode:
            y = F.dropout(x, 0.5)
            again = (
                checkpoint(body, y, use_reentrant=reentrant, preserve_rng_state=preserve)
                if recompute
                else body(y)
            )
            F.dropout(last(again), 0.3).sum().backward()
        return inner.weight.grad.clone(), mode.ordinals

    plain, recomputed = run(False), run(True)
    assert torch.equal(plain[0], recomputed[0])
    assert plain[1] == recomputed[1] == 4


def test_the_callers_generator_is_put_back():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with twin(SEED, COUNT):
        torch.rand(100)
    assert torch.equal(before, torch.get_rng_state())


def test_same_step_same_numbers_and_other_steps_others():
    def draw(count):
        with twin(SEED, count):
            return torch.rand(1000), torch.rand(1000)

    a, b = draw(0), draw(0)
    assert torch.equal(a[0], b[0])
    assert not torch.equal(a[0], a[1])
    assert not torch.equal(a[0], draw(1)[0])


def test_half_precision_never_rounds_to_one():
    with twin(SEED, COUNT):
        for dtype in (torch.bfloat16, torch.float16):
            drawn = torch.rand(20_000, dtype=dtype)
            assert drawn.dtype == dtype
            assert drawn.max() < 1


def test_a_draw_that_the_bridge_lacks_is_an_error():
    with twin(SEED, COUNT), pytest.raises(NotImplementedError, match="poisson"):
        torch.poisson(torch.ones(3))
