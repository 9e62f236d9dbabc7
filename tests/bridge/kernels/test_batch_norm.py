"""Batch normalisation by the extension's kernel: beside float64, and as a layer of a step beside eager PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import detente
from detente.bridge.kernels import build
from detente.bridge.kernels.batch_norms import Norm, normalised, spread
from detente.programs.count import count_program
from detente.programs.hlo import read_hlo
from detente.programs.kinds import kinds_of
from tests.sampled import sampled

TARGET = "detente_batch_norm"
# One row, one channel, a width that no loop has, blocks and pieces that end in the middle, more channels than a block
# holds numbers.
SHAPES = [
    (1, 5),
    (7, 1),
    (4096, 1),
    (9000, 4),
    (3, 5, 7, 3),
    (2, 9, 9, 83),
    (4, 56, 56, 64),
    (2, 14, 14, 1100),
    (9, 5000),
    (70000, 17),
]


def batch_norm(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    found = spread(x, eps)
    return normalised(Norm(x, weight, bias, found)), found.mean, found.inverse, found.variance


def by_kernel(function: Any, *operands: Any) -> Any:
    with build.calling():
        lowered = jax.jit(function).lower(*operands)
    assert TARGET in lowered.as_text()
    return jax.tree.map(np.asarray, lowered.compile()(*operands))


def in_float64(x: Any, weight: Any, bias: Any, gradient: Any, eps: float) -> tuple[Any, Any]:
    x, weight, bias, gradient = (
        torch.from_numpy(np.asarray(a, np.float64)) for a in (x, weight, bias, gradient)
    )
    rows = x.reshape(-1, x.shape[-1])
    for one in (given := (rows, weight, bias)):
        one.requires_grad_()
    mean, variance = rows.mean(0), rows.var(0, unbiased=False)
    y = (rows - mean) / (variance + eps).sqrt() * weight + bias
    y.backward(gradient.reshape(rows.shape))
    results = (y.reshape(x.shape), mean, 1 / (variance + eps).sqrt(), variance)
    return [r.detach().numpy() for r in results], [g.grad.numpy() for g in given]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [0.0, 1000.0], ids=["near zero", "far from zero"])
def test_results_and_gradients_are_float64s(shape: tuple[int, ...], mean: float) -> None:
    draw = np.random.default_rng(len(shape))
    x = (draw.standard_normal(shape) * 2 + mean).astype(np.float32)
    gradient = draw.standard_normal(shape).astype(np.float32)
    weight, bias = draw.standard_normal((2, shape[-1])).astype(np.float32)

    def both(x: Any, weight: Any, bias: Any, gradient: Any) -> Any:
        results, back = jax.vjp(lambda *given: batch_norm(*given, 1e-5), x, weight, bias)
        none = [jnp.zeros_like(r) for r in results[1:]]
        return results, back((gradient, *none))

    results, gradients = by_kernel(both, x, weight, bias, gradient)
    wanted, wanted_gradients = in_float64(x, weight, bias, gradient, 1e-5)
    # Of float32's numbers themselves: what x - mean can lose where the mean is large.
    near = 2e-6 + 4e-7 * mean
    if shape[0] == 1:  # no spread at all: a gradient of nothing, times 316
        near *= 100
    for found, right in zip([*results, *gradients], [*wanted, *wanted_gradients], strict=True):
        scale = max(float(np.abs(right).max()), 1e-3)
        assert float(np.abs(found - right.reshape(found.shape)).max()) <= near * scale


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("more", [False, True], ids=["alone", "with a residual"])
@pytest.mark.parametrize("clamped", [False, True], ids=["as it is", "clamped"])
def test_what_stands_behind_it_is_part_of_the_pass(shape: tuple[int, ...], more: bool, clamped: bool) -> None:
    draw = np.random.default_rng(len(shape))
    x, gradient, beside = draw.standard_normal((3, *shape)).astype(np.float32)
    weight, bias = draw.standard_normal((2, shape[-1])).astype(np.float32)

    def both(x: Any, weight: Any, bias: Any, beside: Any, gradient: Any) -> Any:
        def made(x: Any, weight: Any, bias: Any, beside: Any) -> Any:
            norm = Norm(x, weight, bias, spread(x, 1e-5))
            return normalised(norm, beside if more else None, clamped)

        y, back = jax.vjp(made, x, weight, bias, beside)
        return y, back(gradient)

    y, gradients = by_kernel(both, x, weight, bias, beside, gradient)
    given = [torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (x, weight, bias, beside)]
    rows = given[0].reshape(-1, shape[-1])
    wanted = (
        (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt() * given[1] + given[2]
    ).reshape(shape)
    wanted = wanted + given[3] if more else wanted
    # At the kink, where the two round apart, both are right: float32's side is taken.
    through = torch.from_numpy(y > 0) if clamped else torch.ones(shape, dtype=torch.bool)
    assert np.abs(y - (wanted * through).detach().numpy()).max() <= 2e-6 * float(wanted.abs().max())
    wanted.backward(torch.from_numpy(gradient.astype(np.float64)) * through)
    near = 2e-6 * (100 if shape[0] == 1 else 1)  # no spread at all: a gradient of nothing, times 316
    for found, one in zip(gradients, given, strict=True):
        right = np.zeros(one.shape) if one.grad is None else one.grad.numpy()
        assert np.abs(found - right).max() <= near * max(float(np.abs(right).max()), 1e-3)


def test_behind_a_clamp_what_is_no_number_stays_none_and_what_is_zero_sends_nothing_back() -> None:
    x = np.asarray([[1.0], [-1.0], [0.0]], np.float32)
    one, zero, beside = (
        np.ones(1, np.float32),
        np.zeros(1, np.float32),
        np.asarray([[np.nan], [5], [0]], np.float32),
    )

    def made(beside: Any) -> Any:
        return normalised(Norm(x, one, zero, spread(x, 1e-5)), beside, clamped=True)

    def both(beside: Any) -> Any:
        y, back = jax.vjp(made, beside)
        return y, back(jnp.full_like(y, 3.0))[0]

    y, back = by_kernel(both, beside)
    assert np.isnan(y[0, 0]) and y[2, 0] == 0 and back[:, 0].tolist() == [3, 3, 0]


@pytest.mark.parametrize("shape", [(4096, 1), (2, 64, 64, 4), (8, 16, 16, 64), (70000, 17)])
@pytest.mark.parametrize(("mean", "spread"), [(1000.1, 0.0), (100.3, 0.0), (1000.1, 0.1), (-5e4, 1.0)])
def test_a_mean_far_away_costs_no_digits(shape: tuple[int, ...], mean: float, spread: float) -> None:
    """A block's mean that was summed in float32 made 0.97 of a loss of nothing, of pictures of one colour."""
    x = (np.random.default_rng(0).standard_normal(shape) * spread + mean).astype(np.float32)
    ones, zeros = np.ones(shape[-1], np.float32), np.zeros(shape[-1], np.float32)
    y, _, _, variance = by_kernel(lambda x: batch_norm(x, ones, zeros, 1e-5), x)
    exact, over = x.astype(np.float64), tuple(range(x.ndim - 1))
    wanted = (exact - exact.mean(over)) / np.sqrt(exact.var(over) + 1e-5)
    assert np.abs(y - wanted).max() <= 2e-6 * max(1.0, np.abs(wanted).max())
    assert np.abs(variance - exact.var(over)).max() <= 1e-6 * (exact.var(over).max() + 1e-9)


@pytest.mark.parametrize("spread", [0.0, 1e-20, 1e18])
def test_columns_without_spread_or_with_far_too_much_are_as_xlas(spread: float) -> None:
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32) * np.float32(spread)
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    y = by_kernel(lambda x: batch_norm(x, ones, zeros, 1e-5)[0], x)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-5)
    assert np.abs(y - exact).max() <= 1e-6 * np.abs(exact).max()


def test_what_is_no_number_stays_none_and_in_its_channel() -> None:
    x = np.random.default_rng(0).standard_normal((100, 3)).astype(np.float32)
    x[50, 1] = np.nan
    y = by_kernel(lambda x: batch_norm(x, np.ones(3, np.float32), np.zeros(3, np.float32), 1e-5)[0], x)
    assert np.isnan(y[:, 1]).all() and np.isfinite(y[:, [0, 2]]).all()


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU()
        )
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=False))


def frozen_weights() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1))
    model[1].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    return model


class Joined(nn.Module):
    """A convolution, its norm, and what ``join(norm, its result, what the convolution read)`` makes of them."""

    def __init__(self, join: Any) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.second, self.other = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last, self.join = nn.Conv2d(8, 4, 1), join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(self.join(self, self.norm(self.second(x)), x))


def unwatched(made: Any) -> torch.Tensor:
    with torch.no_grad():
        return made()


JOINS = {
    "a residual": lambda m, y, x: torch.relu(y + x),
    "a residual in front": lambda m, y, x: torch.relu(x + y),
    "two norms": lambda m, y, x: torch.relu(y + m.other(x)),
    "in place": lambda m, y, x: torch.relu_(y.add_(x)),
    "three": lambda m, y, x: torch.relu(y + x + m.other(x)),
    "itself": lambda m, y, x: torch.relu(y + y),
    "twice of it": lambda m, y, x: torch.relu(torch.add(y, x, alpha=2)),
    "a number": lambda m, y, x: torch.relu(y + 0.25),
    "what is broadcast": lambda m, y, x: torch.relu(y + x.mean((2, 3), keepdim=True)),
    "what is broadcast over channels": lambda m, y, x: torch.relu(y + x.mean(1, keepdim=True)),
    "another dtype": lambda m, y, x: torch.relu(y.double() + x).float(),
    "read before and behind": lambda m, y, x: torch.relu(y) + y.tanh() + torch.relu(y + x) * (y + x).tanh(),
    "a clamp of a clamp": lambda m, y, x: torch.relu(torch.relu(y) + x),
    "a norm of it": lambda m, y, x: torch.relu(m.other(torch.relu(y))),
    "what is detached": lambda m, y, x: torch.relu(y.detach() + x) + torch.relu(y + x.detach()),
    "no gradient": lambda m, y, x: x * torch.relu(y).detach(),
    "turned": lambda m, y, x: torch.relu((y + x).transpose(2, 3)),
    "recomputed behind it": lambda m, y, x: checkpoint(
        lambda y, x: torch.relu(y + x), y, x, use_reentrant=False
    ),
    "without gradients": lambda m, y, x: x + unwatched(lambda: torch.relu(m.other(x) + x)) * torch.relu(y),
    "its result alone": lambda m, y, x: torch.relu(unwatched(lambda: m.other(x)) + y),
    "a condition": lambda m, y, x: torch.where(x > 0, torch.relu(y + x), y),
}


class All(nn.ModuleDict):
    """One step of all: whose weights come out wrong is told by their name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([one(x) for one in self.values()], 1) * len(self) ** 0.5


LAYERS = {
    "joined": (lambda: All({name: Joined(join) for name, join in JOINS.items()}), (4, 3, 9, 9)),
    "2d": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)), (4, 3, 9, 9)),
    "of rows": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)), (16, 6)),
    "of positions": (lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.Conv1d(8, 4, 1)), (4, 3, 9)),
    "3d": (lambda: nn.Sequential(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.Conv3d(8, 4, 1)), (2, 3, 5, 5, 5)),
    "frozen weights": (frozen_weights, (4, 3, 9, 9)),
    "recomputed": (Recomputed, (4, 3, 9, 9)),
    "without weights": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.Conv2d(8, 4, 1)),
        (4, 3, 9, 9),
    ),
    "without statistics": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.Conv2d(8, 4, 1)),
        (4, 3, 9, 9),
    ),
    "a mean of all": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None), nn.Conv2d(8, 4, 1)),
        (4, 3, 9, 9),
    ),
}  # fmt: skip


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1))
            for _ in range(8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize(
    "options",
    [{"form": "rolled"}, {"form": "rolled+dots"}, {"accumulate": 2}],
    ids=lambda o: str(*o.values()),
)
def test_in_a_loop_recomputed_or_in_parts_it_trains_as_without_kernels(
    options: Any, monkeypatch: Any
) -> None:
    losses, states = {}, {}
    for kernels in ("1", "0"):
        monkeypatch.setenv(build.VARIABLE, kernels)
        build.kernels.cache_clear()
        torch.manual_seed(0)
        model, x = Layers(), torch.randn(4, 6, 8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step = detente.compile(
            model,
            lambda m, b: m(b).square().mean(),
            optimizer,
            example_batch=x,
            quiet=True,
            cache=False,
            **options,
        )
        losses[kernels] = [float(step(x)) for _ in range(4)]
        states[kernels] = {k: v.clone() for k, v in model.state_dict().items()}
        assert (TARGET in step.programs[0].compiled.executable.as_text()) is (kernels == "1")
    assert losses["1"] == pytest.approx(losses["0"], rel=1e-4)
    for key, value in states["0"].items():
        assert torch.allclose(states["1"][key].double(), value.double(), rtol=1e-3, atol=1e-5), key


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = self.norm(x)
        return torch.cond(x.sum() > 0, lambda y, x: torch.relu(y + x), lambda y, x: torch.relu(y) - x, (y, x))


def test_a_norm_that_a_branch_clamps_trains_as_without_kernels(monkeypatch: Any) -> None:
    losses = []
    for kernels in ("1", "0"):
        monkeypatch.setenv(build.VARIABLE, kernels)
        build.kernels.cache_clear()
        torch.manual_seed(0)
        model, x = Branches(), torch.randn(4, 3, 9, 9)
        step = stepped(model, x, lambda m, b: m(b).square().mean())
        losses.append([float(step(x * (-1) ** k)) for k in range(4)])
        assert (TARGET in step.programs[0].compiled.executable.as_text()) is (kernels == "1")
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def stepped(model: nn.Module, x: torch.Tensor, loss: Any) -> Any:
    return detente.compile(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=x, quiet=True, cache=False
    )


@pytest.mark.parametrize("name", sampled(LAYERS, 2))
def test_a_layer_trains_as_eagers_and_moves_its_statistics(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    torch.manual_seed(0)
    twin = make()
    twin.load_state_dict(model.state_dict())
    step = stepped(model, x, lambda m, b: m(b).square().mean())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(4):
        found = float(step(x))
        optimizer.zero_grad()
        loss = twin(x).square().mean()
        loss.backward()
        optimizer.step()
        assert found == pytest.approx(loss.item(), rel=1e-5)
    assert TARGET in step.programs[0].compiled.executable.as_text()
    for key, value in twin.state_dict().items():
        assert torch.allclose(model.state_dict()[key].double(), value.double(), rtol=1e-4, atol=1e-6), key


def test_a_layer_that_is_evaluated_is_the_plain_form() -> None:
    torch.manual_seed(0)
    frozen, x = LAYERS["2d"][0](), torch.randn(4, 3, 9, 9)
    frozen[1].eval()
    step = stepped(frozen, x, lambda m, b: m(b).square().mean())
    assert np.isfinite([float(step(x)), float(step(x))]).all()
    assert TARGET not in step.programs[0].compiled.executable.as_text()


def test_one_inside_of_a_gradient_penalty_is_differentiated_twice() -> None:
    """The kernel has no second derivative: a layer that is traced once for all calls of its kind is another there."""

    def penalty(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(batch).square().sum(), batch, create_graph=True)
        return gradient.square().mean()

    torch.manual_seed(0)
    model, x = LAYERS["2d"][0](), torch.randn(4, 3, 9, 9)
    twin = LAYERS["2d"][0]()
    twin.load_state_dict(model.state_dict())
    step, optimizer = stepped(model, x, penalty), torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):  # the second one makes the certificate
        optimizer.zero_grad()
        loss = penalty(twin, x)
        loss.backward()
        optimizer.step()
        assert float(step(x)) == pytest.approx(loss.item(), rel=1e-4)


def test_another_shape_than_it_says_is_refused() -> None:
    from detente.bridge.kernels.targets import BATCH_NORM, OF_BATCH_NORM, SPREAD, call

    x, w = np.ones((4, 3), np.float32), np.ones(3, np.float32)
    whole, own = (4, 3), (3,)
    calls = {
        SPREAD: ([own] * 4, (x,), {"eps": 1e-5}),
        BATCH_NORM: ([whole], (x, w, w, w, w, w), {"clamped": True, "beside": False}),
        OF_BATCH_NORM: ([whole, own, own], (x, w, w, w, x, x), {"clamped": True, "beside": False}),
    }
    right = {"rows": 4, "channels": 3}
    for target, (results, operands, more) in calls.items():

        def run(target: str = target, results: Any = results, operands: Any = operands, **said: Any) -> Any:
            return jax.block_until_ready(jax.jit(lambda: call(target, results, *operands, **said))())

        run(**more, **right)
        wrong = [{"rows": r, "channels": c} for r, c in ((5, 3), (4, 4), (0, 3), (-4, -3))]
        if target != SPREAD:  # what is said to be beside, and is not
            wrong.append({**right, "beside": True})
        for said in wrong:
            with pytest.raises(Exception, match="other shapes than it says"):
                run(**{**more, **said})


def test_who_reads_a_program_knows_every_kernel_and_what_this_one_is() -> None:
    """A call that nobody knows is a library's, whose work cannot be counted."""
    from detente.bridge.kernels.targets import OURS
    from detente.programs.hlo import BRIDGES

    assert {build.TARGET, *OURS} == BRIDGES
    torch.manual_seed(0)
    model, x = nn.Sequential(LAYERS["2d"][0](), nn.Dropout(0.5)), torch.randn(4, 3, 9, 9)
    step = stepped(model, x, lambda m, b: m(b).square().mean())
    float(step(x))
    (module,) = step.programs[0].compiled.executable.runtime_executable().hlo_modules()
    found = count_program(module.as_serialized_hlo_module_proto(), "hlo")
    assert found.norms == {"batch-norm-training": 1, "batch-norm-grad": 1} and found.rng_ops >= 2
    assert not [target for target in found.custom_calls if "norm" in target or "threefry" in target]
    kinds = kinds_of(read_hlo(module.as_serialized_hlo_module_proto())).values()
    assert "random numbers" in kinds and "reductions" in kinds
