"""Losses that differentiate inside: ``torch.autograd.grad``, ``torch.func``, ``torch.vmap``, beside eager PyTorch in
float64 for three steps: loss, every gradient (also which of them are None), every buffer, every update."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad as imported_before

import detente
from detente import bridge
from detente.bridge.random import twin
from tests.sampled import sampled

torch.manual_seed(0)
X = torch.randn(6, 3)
IMAGES = torch.randn(3, 2, 6, 6)
IDS = torch.randint(9, (4, 5))
WORDS = torch.randn(2, 4, 8)
grad = torch.autograd.grad
func = torch.func

Loss = Callable[[Any, Any], Any]
CASES: dict[str, tuple[Callable[[], nn.Module], Any, Loss]] = {}


def net(drop: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(drop), nn.Linear(8, 1))


def dropping() -> nn.Module:
    return net(0.3)


def case(make: Callable[[], nn.Module] = net, batch: Any = X) -> Callable[[Loss], Loss]:
    def register(loss: Loss) -> Loss:
        CASES[loss.__name__] = make, batch, loss
        return loss

    return register


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_()


def penalty(m: Any, x: torch.Tensor) -> torch.Tensor:
    """The gradient penalty of WGAN-GP at ``x``."""
    (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    return ((g.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


# torch.autograd.grad


@case(dropping)
def gradient_penalty_with_dropout(m, x):
    mixed = (torch.rand(6, 1) * x + 0.5).requires_grad_(True)
    return m(x).mean() + 10 * penalty(m, mixed)


@case(
    lambda: nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.1), nn.Dropout(0.3), nn.Linear(8, 1)
    )
)
def statistics_are_written_once(m, x):
    x = leaf(x)
    y = m(x)
    (g,) = grad(y.sum(), x, create_graph=True)
    return y.pow(2).mean() + g.pow(2).mean()


@case()
def physics_informed(m, x):
    x = leaf(x)
    u = m(x)
    du = grad(u, x, torch.ones_like(u), create_graph=True)[0]
    uxx = grad(du[:, 0], x, torch.ones_like(du[:, 0]), create_graph=True)[0][:, 0]
    uyy = grad(du[:, 1], x, torch.ones_like(du[:, 1]), create_graph=True)[0][:, 1]
    return (du[:, 2] - uxx - uyy + u[:, 0] * du[:, 0]).pow(2).mean()


@case()
def coordinates_apart(m, x):
    a, b = x[:, :1].clone().requires_grad_(), x[:, 1:].clone().requires_grad_()
    u = m(torch.cat([a, b], 1))
    ua, ub = grad(u.sum(), (a, b), create_graph=True)
    return (ua - ub.sum(1, keepdim=True) * u).pow(2).mean()


@case()
def third_derivative(m, x):
    x = leaf(x)
    u = m(x).sum()
    for _ in range(3):
        u = grad(u, x, create_graph=True)[0].pow(2).sum()
    return u


@case()
def an_input_that_comes_of_another(m, x):
    x = leaf(x)
    h = m[0](x)
    y = m[3](torch.tanh(h)) + x.sum(1, keepdim=True)
    a, b, c = grad(y.pow(2).sum(), [x, h, x], create_graph=True)
    return (a * c).mean() + b.pow(2).mean()


@case()
def begins_after_it_was_read(m, x):
    x = x.clone()
    before = m[0](x)
    x.requires_grad_()
    return grad((torch.tanh(m[0](x)) * before).sum(), x, create_graph=True)[0].pow(2).mean()


@case()
def begins_by_the_attribute(m, x):
    x = x.clone()
    before = m[0](x)
    x.requires_grad = True
    return grad((torch.tanh(m[0](x)) * before).sum(), x, create_graph=True)[0].pow(2).mean()


@case()
def the_batch_itself(m, x):
    x.requires_grad_()
    y = m(x)
    (g,) = grad(y.sum(), x, create_graph=True)
    x.requires_grad_(False)
    return g.pow(2).mean() + y.mean()


@case(batch=X.clone().requires_grad_())
def a_batch_that_requires_a_gradient(m, x):
    return grad(m(x).sum(), x, create_graph=True)[0].pow(2).mean() + m(x).mean()


@case()
def an_attack_in_place(m, x):
    delta = torch.zeros_like(x)
    delta.requires_grad_()
    for _ in range(2):
        (g,) = grad(m(x + delta).pow(2).sum(), delta)
        with torch.no_grad():
            delta += 0.1 * g.sign()
            delta.clamp_(-0.15, 0.15)
    return m(x + delta.detach()).pow(2).mean()


@case()
def imported_by_name(m, x):
    x = leaf(x)
    return imported_before(m(x).sum(), x, create_graph=True)[0].pow(2).mean()


@case()
def unused_and_materialized(m, x):
    x, z = leaf(x), torch.ones(3, requires_grad=True)
    a, none = grad(m(x).sum(), [x, z], create_graph=True, allow_unused=True)
    assert none is None
    c, zeros = grad(m(x).sum(), [x, z], create_graph=True, materialize_grads=True)
    return a.pow(2).mean() + zeros.sum() + c.mean() ** 2


@case()
def gradients_without_a_graph(m, x):
    value = m(x).pow(2).mean()
    found = grad(value, list(m.parameters()), retain_graph=True)
    assert not any(g.requires_grad for g in found)
    return value * (1 + sum(g.pow(2).sum() for g in found).sqrt())


@case()
def several_outputs_with_cotangents(m, x):
    x = leaf(x)
    h, y = torch.tanh(m[0](x)), m(x)
    (g,) = grad([h, y], [x], [torch.linspace(0, 1, 8).expand(6, 8), y], create_graph=True)
    return g.pow(2).mean()


@case()
def cotangents_in_a_batch(m, x):
    x = leaf(x)
    (rows,) = grad(torch.tanh(m[0](x)).sum(0), x, torch.eye(8), create_graph=True, is_grads_batched=True)
    return rows.pow(2).mean()


@case()
def functional_jacobian_and_hessian(m, x):
    of = torch.autograd.functional
    jacobian = of.jacobian(lambda z: m[0](z).tanh().sum(0), x, create_graph=True, vectorize=True)
    hessian = of.hessian(lambda z: m(z).pow(2).sum(), x[:1], create_graph=True)
    product = of.hvp(lambda z: m(z).pow(2).sum(), x[:2], torch.ones(2, 3), create_graph=True)[1]
    return jacobian.pow(2).mean() + hessian.pow(2).mean() + product.pow(2).mean()


@case()
def under_no_grad(m, x):
    x = leaf(x)
    y = m(x)
    total = y.sum()
    with torch.no_grad():
        (kept,) = grad(total, x, create_graph=True)  # a graph is made under no_grad, too
        (plain,) = grad(total, x, retain_graph=True)
        outside = func.grad(lambda z: m(z).pow(2).sum())(x)
    assert kept.requires_grad and not plain.requires_grad and not outside.requires_grad
    return kept.pow(2).mean() + (y * plain.sum()).mean() + outside.sum() * y.mean()


@case()
def written_in_place_afterwards(m, x):
    x = leaf(x)
    g = grad(m(x).sum(), x, create_graph=True)[0] * 1
    g.mul_(2)
    g[0] = 0.5
    return g.clamp_(max=0.1).pow(2).mean()


@case(
    lambda: nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Softplus(), nn.Dropout(0.2)) for _ in range(9)))
)
def layers_that_repeat(m, x):
    return m(x).mean() + penalty(m, leaf(x))


@case(dropping)
def recomputed(m, x):
    x = leaf(x)
    y = torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False)
    return grad(y.sum(), x, create_graph=True)[0].pow(2).mean() + y.mean()


class Energy(nn.Module):
    """Forces are the derivative of an energy, inside of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.clone().requires_grad_(True)
        apart = (x[:, None] - x[None]).pow(2).sum(-1) + torch.eye(len(x), dtype=x.dtype)
        energy = self.net(x).sum() + (-apart.sqrt()).exp().sum()
        return energy, -grad(energy, x, create_graph=self.training)[0]


@case(Energy)
def forces(m, x):
    energy, force = m(x)
    return energy.pow(2) * 1e-3 + (force - x).pow(2).mean(), {"force": force}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(ids))


@case(Words, IDS)
def a_tied_weight(m, ids):
    value = F.cross_entropy(m(ids).flatten(0, 1), ids.flatten())
    return value + grad(value, m.embed.weight, create_graph=True)[0].pow(2).sum()


@case(Words, IDS)
def adversarial_embeddings(m, ids):
    e = m.embed(ids)
    value = F.cross_entropy(m.out(e).flatten(0, 1), ids.flatten())
    (g,) = grad(value, e, retain_graph=True)
    return value + F.cross_entropy(m.out(e + 0.1 * g.sign()).flatten(0, 1), ids.flatten())


@case(
    lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU(), nn.MaxPool2d(2),
        nn.InstanceNorm2d(4), nn.Conv2d(4, 2, 3), nn.Softplus(), nn.Flatten(), nn.Linear(2, 1),
    ),
    IMAGES,
)  # fmt: skip
def a_convolutional_critic(m, x):
    return m(x).mean() + penalty(m, leaf(x))


@case(lambda: nn.LSTM(3, 5, batch_first=True), torch.randn(2, 4, 3))
def a_recurrent_critic(m, x):
    x = leaf(x)
    return grad(m(x)[0].sum(), x, create_graph=True)[0].pow(2).mean()


@case(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), WORDS)
def attention(m, x):
    x = leaf(x)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return grad(m(x).pow(2).sum(), x, create_graph=True)[0].pow(2).mean()


@case()
def complex_numbers(m, x):
    z = torch.fft.fft(leaf(x) * m[0].weight[:6])
    (g,) = grad(z.abs().pow(3).sum(), z, create_graph=True)
    return g.abs().pow(2).mean() + (g * (1 + 2j)).real.mean()


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -2 * g


class Scaled(torch.autograd.Function):
    """Its gradient reads what forward returned."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 1.5 * g * ctx.saved_tensors[0]


@case()
def a_gradient_of_ones_own(m, x):
    x = leaf(x)
    return grad(Scaled.apply(Reversed.apply(m(x))).sum(), x, create_graph=True)[0].pow(2).mean()


@case()
def a_gradient_of_ones_own_that_is_linear(m, x):
    x = leaf(x)
    return grad(Reversed.apply(m(x)).sum(), x, create_graph=True)[0].pow(2).mean()


@case()
def hooks_on_the_way(m, x):
    x = leaf(x)
    h = m[0](x)
    h.register_hook(lambda g: g * g)
    x.register_hook(lambda g: g.sin())
    y = m[3](h.tanh())
    (a,), (b,) = grad(y.sum(), x, create_graph=True), grad(y.sum(), h, create_graph=True)
    return a.pow(2).mean() + b.pow(2).mean()


class Clipped(torch.autograd.Function):
    """Its gradient is not linear: torch runs it once, on the sum of what comes to the value."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g.sin()


@case()
def a_gradient_of_ones_own_that_is_not_linear(m, x):
    x = leaf(x)
    h = Clipped.apply(m[0](x))
    y = Scaled.apply(m[3](h.tanh()))
    (g,) = grad(y.sum(), x, create_graph=True)
    (second,) = grad(g.pow(2).sum(), x, create_graph=True)
    return y.pow(2).mean() + g.pow(2).mean() + second.pow(2).mean() + h.pow(2).mean()


# meta-learning


@case(dropping)
def maml(m, x):
    held = dict(m.named_parameters())
    for _ in range(2):
        inner = func.functional_call(m, held, (x[:3],)).pow(2).mean()
        found = grad(inner, list(held.values()), create_graph=True)
        held = {n: p - 0.1 * g for (n, p), g in zip(held.items(), found, strict=True)}
    return (func.functional_call(m, held, (x[3:],)) - 1).pow(2).mean()


@case()
def maml_of_first_order_by_hand(m, x):
    weights = list(m.parameters())
    found = grad(m(x).pow(2).mean(), weights)
    a, b, c, d = (w - 0.1 * g for w, g in zip(weights, found, strict=True))
    return (torch.tanh(x @ a.T + b) @ c.T + d - 1).pow(2).mean()


# torch.func


@case()
def gradients_per_sample(m, x):
    def one(held, row):
        return func.functional_call(m, held, (row[None],)).pow(2).sum()

    held = dict(m.named_parameters())
    found = torch.vmap(func.grad(one), in_dims=(None, 0))(held, x)
    return sum((g.flatten(1).norm(dim=1).clamp(max=1.0)).mean() for g in found.values())


@case()
def a_hessian_vector_product(m, x):
    def of(held):
        return func.functional_call(m, held, (x,)).pow(2).mean()

    held = dict(m.named_parameters())
    value, product = func.jvp(func.grad(of), (held,), ({n: torch.ones_like(p) for n, p in held.items()},))
    return sum(p.pow(2).sum() for p in product.values()) + value["3.bias"].sum()


@case()
def a_laplacian_by_hessians(m, x):
    hessians = torch.vmap(func.hessian(lambda row: m(row).sum()))(x)
    return (hessians.diagonal(dim1=1, dim2=2).sum(1) - m(x)[:, 0]).pow(2).mean()


@case()
def value_and_extra(m, x):
    def of(held, z):
        return func.functional_call(m, held, (z,)).pow(2).mean(), z.sum()

    found, (value, extra) = func.grad_and_value(of, has_aux=True)(dict(m.named_parameters()), x)
    return value + sum(g.pow(2).sum() for g in found.values()) + 0 * extra


@case()
def two_arguments(m, x):
    a, b = func.grad(lambda a, b: (m(a) * m(b)).sum(), argnums=(0, 1))(x, x + 1)
    return (a * b).mean()


@case()
def pulled_and_pushed(m, x):
    y, pull = func.vjp(lambda z: m(z).tanh(), x)
    (cotangent,) = pull(torch.ones_like(y))
    _, tangent = func.jvp(lambda z: m(z).tanh(), (x,), (torch.ones_like(x),))
    return cotangent.pow(2).mean() + tangent.pow(2).mean()


@case()
def jacobians_both_ways(m, x):
    back = func.jacrev(lambda z: m(z)[:, 0], chunk_size=4)(x)
    ahead = func.jacfwd(lambda z: m(z)[:, 0])(x)
    return back.pow(2).mean() + ahead.pow(3).sum()


@case()
def maps_in_maps(m, x):
    pairs = torch.vmap(lambda a: torch.vmap(lambda b: (m(a) * m(b)).sum())(x))(x)
    columns = torch.vmap(lambda c: (c.sum() * m[0].bias, m[0].bias), in_dims=-1, out_dims=(1, 0))(x)
    return pairs.pow(2).mean() + columns[0].pow(2).mean() + columns[1].sum()


@case()
def a_derivative_through_a_map(m, x):
    x = leaf(x)
    (g,) = grad(torch.vmap(lambda row: m(row).pow(2).sum())(x).sum(), x, create_graph=True)
    return g.pow(2).mean()


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(5, 3, 4)), nn.Parameter(torch.randn(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda a, b: torch.tanh(x @ a) @ b)(self.first, self.second)


@case(Ensemble)
def an_ensemble(m, x):
    return m(x).pow(2).mean() + m(x).var(0).mean()


@pytest.mark.parametrize("name", sampled(CASES, 6))
def test_trains_as_eager_pytorch_does(name, same_function):
    make, batch, loss = CASES[name]
    torch.manual_seed(1)
    same_function(make(), loss, batch)


def test_a_parameter_behind_a_derivative_has_no_gradient(same_function):
    """The derivative of ``w * x + b`` by ``x`` reads ``b``. An optimizer would decay a gradient of zeros."""

    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)

    model = net()
    step = same_function(model, lambda m, x: penalty(m, leaf(x)), X, optimizer=adam)
    assert "3.bias" not in step.programs[0].compiled.names


@pytest.mark.parametrize("form", sampled(["rolled", "rolled+full"], 2))
def test_every_form_differentiates_the_same(form):
    """Layers in a loop beside the derivative that computes them again."""
    make, batch, loss = CASES["layers_that_repeat"]
    values = {}
    for shape in ("unrolled", form):
        torch.manual_seed(1)
        model = make().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = detente.compile(
            model, loss, optimizer, example_batch=batch.double(), form=shape, seed=2, certificate="none"
        )
        values[shape] = [float(step(batch.double())) for _ in range(3)]
    assert values[form] == pytest.approx(values["unrolled"], rel=1e-12)


def test_a_critic_and_its_author_train_in_turns():
    """WGAN-GP with its certificate, one step each, ``share=`` the other; dropout on."""
    torch.manual_seed(0)
    gan = nn.ModuleDict({"g": nn.Linear(2, 3), "d": dropping()})
    other = copy.deepcopy(gan)
    noise, real = torch.randn(6, 2), torch.randn(6, 3)

    def judge(m, batch):
        made = m["g"](batch[0]).detach()
        share = torch.rand(6, 1)
        mixed = (share * batch[1] + (1 - share) * made).requires_grad_(True)
        return m["d"](made).mean() - m["d"](batch[1]).mean() + 10 * penalty(m["d"], mixed)

    def fool(m, batch):
        return -m["d"](m["g"](batch[0])).mean()

    def adam(parameters):
        return torch.optim.Adam(parameters, lr=1e-2, betas=(0.0, 0.9))

    batch = (noise, real)
    critic = detente.compile(gan, judge, adam(gan["d"].parameters()), example_batch=batch, seed=3)
    author = detente.compile(
        gan, fool, adam(gan["g"].parameters()), example_batch=batch, share=critic, seed=4
    )
    plain = [(judge, adam(other["d"].parameters()), 3), (fool, adam(other["g"].parameters()), 4)]
    for count in range(3):
        ours = [float(critic(batch)), float(author(batch))]
        for value, (loss, optimizer, seed) in zip(ours, plain, strict=True):
            other.zero_grad()
            with twin(seed, count):
                expected = loss(other, batch)
            expected.backward()
            optimizer.step()
            assert value == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-5)
    assert critic.certificate.ok and author.certificate.ok


def test_the_live_module_differentiates_in_eager_between_steps():
    """``step.evaluate``, ``step.eager`` and the user's own call, with the parameters as a step leaves them."""

    def loss(m, x):
        def one(held, row):
            return func.functional_call(m, held, (row[None],)).pow(2).sum()

        found = torch.vmap(func.grad(one), in_dims=(None, 0))(dict(m.named_parameters()), x)
        return sum(g.pow(2).mean() for g in found.values()) + penalty(m, leaf(x))

    torch.manual_seed(0)
    model = net()
    step = detente.compile(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=X, seed=1)
    for _ in range(2):
        float(step(X))
    with step.synced() as synced:
        expected = float(loss(synced, X).detach())
    evaluated = step.evaluate(X)
    assert float(evaluated) == pytest.approx(expected, rel=1e-5) and not evaluated.requires_grad
    assert float(step.eager(X)) == pytest.approx(expected, rel=1e-5)
    model[0].requires_grad_(False)
    with step.synced() as synced:
        expected = float(loss(synced, X).detach())
    assert float(step(X)) == pytest.approx(expected, rel=1e-5)


def test_per_sample_gradients_share_their_dropout_mask(same_function):
    """``randomness="same"``: one mask for all turns."""

    def loss(m, x):
        def one(held, row):
            return func.functional_call(m, held, (row[None],)).pow(2).sum()

        found = torch.vmap(func.grad(one), in_dims=(None, 0), randomness="same")(
            dict(m.named_parameters()), x
        )
        return sum(g.pow(2).mean() for g in found.values())

    same_function(net(0.4), loss, X)


# what is refused, with its reason and line


def backward_inside(m, x):
    y = m(x).mean()
    y.backward()
    return y


def backward_of_a_list(m, x):
    y = m(x).mean()
    torch.autograd.backward([y])
    return y


def freed_before_the_end(m, x):
    x = leaf(x)
    y = m(x).pow(2)
    (g,) = grad(y.sum(), x)
    return y.mean() + g.sum()


def not_connected(m, x):
    return grad(m(x).sum(), torch.ones(2, requires_grad=True), create_graph=True)[0].sum()


def draws_in_a_map(m, x):
    return torch.vmap(lambda row: F.dropout(row, 0.5).sum())(x).sum() * m[0].bias.sum()


def draws_apart_in_a_map(m, x):
    return (
        torch.vmap(lambda row: F.dropout(row, 0.5).sum(), randomness="different")(x).sum() * m[0].bias.sum()
    )


def lets_a_turn_out(m, x):
    out = []
    torch.vmap(lambda row: out.append(m(row).sum()) or row)(x)
    return out[0]


def forward_mode(m, x):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return torch.autograd.forward_ad.unpack_dual(m(dual)).tangent.pow(2).mean()


def in_a_map_of_integers(m, x):
    return torch.vmap(lambda i: func.grad(lambda w: (w * i).pow(2).sum())(m[0].bias))(torch.arange(3)).sum()


def writes_a_turn(m, x):
    return torch.vmap(lambda row: m(row.mul_(2)).sum())(x).sum()


def linearized(m, x):
    return func.linearize(lambda z: m(z).tanh(), x)[1](torch.ones_like(x)).pow(2).mean()


REFUSED = [
    (backward_inside, "one backward pass", "share=", "y.backward()"),
    (backward_of_a_list, "one backward pass", "share=", "torch.autograd.backward"),
    (freed_before_the_end, "second time", "PyTorch raises the same", "grad(y.sum(), x)"),
    (not_connected, "used in the graph", "PyTorch raises the same", "torch.ones(2"),
    (draws_in_a_map, "randomness='error'", "randomness='same'", "torch.vmap"),
    (draws_apart_in_a_map, "randomness='different'", "randomness='same'", "torch.vmap"),
    (lets_a_turn_out, "a single turn", "return it", "torch.vmap"),
    (forward_mode, "forward-mode", "torch.func.jvp", "make_dual"),
    (writes_a_turn, "one turn of torch.vmap", "clone", "row.mul_"),
    (in_a_map_of_integers, "integers alone", "floats", "torch.vmap"),
    (linearized, "linearize", "torch.func.jvp", "linearize"),
]


@pytest.mark.parametrize(("loss", "what", "hint", "line"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_refused_with_the_reason_and_the_line(loss, what, hint, line):
    model = net()
    with pytest.raises(bridge.Refused) as raised:
        bridge.compile(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=X)
    (reason,) = raised.value.reasons
    assert reason.code == "transform" and what in reason.what and hint in str(reason), str(raised.value)
    source, start = inspect.getsourcelines(loss)
    assert reason.where.file == __file__, str(raised.value)
    assert line in source[reason.where.line - start]


def test_what_torch_does_is_as_it_was_after_a_capture():
    plain = func.hessian, torch.vmap, torch.autograd.grad, torch.autograd._engine_run_backward
    model = net()
    bridge.compile(
        model, lambda m, x: penalty(m, leaf(x)), torch.optim.SGD(model.parameters(), lr=0.1), example_batch=X
    )
    assert plain == (func.hessian, torch.vmap, torch.autograd.grad, torch.autograd._engine_run_backward)
    x = leaf(X)
    (x**2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * X)
    torch.testing.assert_close(torch.vmap(func.grad(lambda r: (r**3).sum()))(X), 3 * X**2)
