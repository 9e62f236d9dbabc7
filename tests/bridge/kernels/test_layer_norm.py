"""Layer normalisation by the extension's kernel: beside float64, and as a layer of a step beside eager PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import detente
from detente.bridge.kernels import build
from detente.bridge.kernels.layer_norms import layer_norm
from detente.bridge.kernels.targets import LAYER_NORM, OF_LAYER_NORM, call
from detente.programs.count import count_program
from detente.programs.hlo import read_hlo
from detente.programs.kinds import kinds_of

# (x, how many of its last axes): one number, one row, a width that no lane has, more rows than a piece, rows that are
# pieces of their own, several axes at once.
SHAPES = [
    ((1, 1), 1), ((5,), 1), ((7, 1), 1), ((1, 64), 1), ((3, 5, 83), 1), ((4096, 65), 1), ((70000, 3), 1),
    ((2, 100000), 1), ((40, 3000), 1), ((100, 2048), 1), ((2, 197, 768), 1), ((2, 3, 5, 7), 2), ((6, 4, 3), 3),
]  # fmt: skip


def by_kernel(function: Any, *operands: Any) -> Any:
    with build.calling():
        lowered = jax.jit(function).lower(*operands)
    assert LAYER_NORM in lowered.as_text()
    return jax.tree.map(np.asarray, lowered.compile()(*operands))


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("mean", [0.0, 1000.0], ids=["near zero", "far from zero"])
def test_results_and_gradients_are_float64s(shape: tuple[int, ...], axes: int, mean: float) -> None:
    draw, own = np.random.default_rng(len(shape)), shape[-axes:]
    x = (draw.standard_normal(shape) * 2 + mean).astype(np.float32)
    gradient = draw.standard_normal(shape).astype(np.float32)
    weight, bias = draw.standard_normal((2, *own)).astype(np.float32)

    def both(x: Any, weight: Any, bias: Any, gradient: Any) -> Any:
        results, back = jax.vjp(lambda *given: layer_norm(*given, 1e-5), x, weight, bias)
        return results, back((gradient, *(jnp.zeros_like(r) for r in results[1:])))

    results, gradients = by_kernel(both, x, weight, bias, gradient)
    wanted, eagers = (by_torch(dtype, x, weight, bias, gradient) for dtype in (np.float64, np.float32))
    # Of float32's numbers themselves: what x - mean can lose where the mean is large; and where a row has next to no
    # spread, nearer than torch's own kernel or about as near.
    near = 2e-6 + 4e-7 * mean
    for at, (found, right, eager) in enumerate(zip([*results, *gradients], wanted, eagers, strict=True)):
        scale = max(float(np.abs(x if at == 1 else right).max()), 1e-3)  # a mean can be nothing
        own = float(np.abs(eager - right).max())
        assert float(np.abs(found - right.reshape(found.shape)).max()) <= max(near * scale, 2 * own), (
            at,
            own,
        )


def by_torch(dtype: Any, x: Any, weight: Any, bias: Any, gradient: Any) -> list[Any]:
    given = [torch.from_numpy(a.astype(dtype)).requires_grad_() for a in (x, weight, bias)]
    y, middle, inverse = torch.ops.aten.native_layer_norm(given[0], weight.shape, given[1], given[2], 1e-5)
    y.backward(torch.from_numpy(gradient.astype(dtype)))
    return [*(r.detach().numpy() for r in (y, middle, inverse)), *(g.grad.numpy() for g in given)]


@pytest.mark.parametrize(
    ("mean", "spread"), [(1000.1, 0.0), (100.3, 0.0), (1000.1, 0.1), (-5e4, 1.0), (0.0, 1e18)]
)
@pytest.mark.parametrize("shape", [(64, 4096), (500, 7), (3, 768)])
def test_a_mean_far_away_costs_no_digits(shape: tuple[int, ...], mean: float, spread: float) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * spread + mean).astype(np.float32)
    ones, zeros = np.ones(shape[-1], np.float32), np.zeros(shape[-1], np.float32)
    y = by_kernel(lambda x: layer_norm(x, ones, zeros, 1e-5)[0], x)
    exact = x.astype(np.float64)
    wanted = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    assert np.abs(y - wanted).max() <= 2e-6 * max(1.0, np.abs(wanted).max())


def test_what_is_no_number_stays_none_and_in_its_row() -> None:
    x = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    for what in (np.nan, np.inf):
        x[1, 50] = what
        y, _, inverse = by_kernel(
            lambda x: layer_norm(x, np.ones(100, np.float32), np.zeros(100, np.float32), 1e-5), x
        )
        assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()
        assert np.isnan(inverse[1]) and np.isfinite(inverse[[0, 2]]).all()


class Each(nn.ModuleDict):
    """One step of all: whose weights come out wrong is told by their name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([one(x).square().mean() for one in self.values()])


class Held(nn.Module):
    def __init__(self, norm: nn.Module, use: Any = None) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 12), norm, nn.Linear(12, 5)
        self.use = use or (lambda m, x: m.norm(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.use(self, self.first(x)))


def frozen() -> nn.Module:
    norm = nn.LayerNorm(12)
    norm.weight.requires_grad_(False)
    return norm


def unwatched(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = m.norm(x)
    return y + x


def every() -> nn.Module:
    torch.manual_seed(0)
    return Each(
        {
            "plain": Held(nn.LayerNorm(12)),
            "without a bias": Held(nn.LayerNorm(12, bias=False)),
            "without weights": Held(nn.LayerNorm(12, elementwise_affine=False)),
            "frozen": Held(frozen()),
            "another eps": Held(nn.LayerNorm(12, eps=0.5)),
            "two axes": Held(nn.LayerNorm((7, 12))),
            "recomputed": Held(nn.LayerNorm(12), lambda m, x: checkpoint(m.norm, x, use_reentrant=False)),
            "twice": Held(nn.LayerNorm(12), lambda m, x: m.norm(m.norm(x) * 2) + x),
            "without gradients": Held(nn.LayerNorm(12), unwatched),
            "turned": Held(nn.LayerNorm(7), lambda m, x: m.norm(x.transpose(1, 2)).transpose(1, 2)),
            "of a product with its own weight": Held(
                nn.LayerNorm(12), lambda m, x: m.norm(x) * m.norm.weight
            ),
            "by hand": Held(
                nn.LayerNorm(12), lambda m, x: F.layer_norm(x, (12,), m.norm.weight[:12] * 2, m.norm.bias)
            ),
            "in double": Held(
                nn.LayerNorm(12), lambda m, x: F.layer_norm(x.double(), (12,)).float() + m.norm(x)
            ),
        }
    )


def test_every_use_of_it_trains_as_eagers() -> None:
    model, twin, x = every(), every(), torch.randn(4, 7, 12)

    def loss(m: nn.Module, b: torch.Tensor) -> torch.Tensor:
        return m(b).sum()

    step = detente.compile(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=x, quiet=True, cache=False
    )
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        value = loss(twin, x)
        value.backward()
        optimizer.step()
        assert float(step(x)) == pytest.approx(value.item(), rel=1e-5)
    assert LAYER_NORM in step.programs[0].compiled.executable.as_text()
    for key, value in twin.state_dict().items():
        assert torch.allclose(model.state_dict()[key], value, rtol=1e-4, atol=1e-6), key


@pytest.mark.parametrize(
    "options", [{"form": "rolled"}, {"form": "rolled+dots"}, {"form": "inside"}, {"accumulate": 2}],
    ids=lambda o: str(*o.values()),
)  # fmt: skip
def test_in_a_loop_recomputed_or_in_parts_it_trains_as_without_kernels(
    options: Any, monkeypatch: Any
) -> None:
    losses = []
    for kernels in ("1", "0"):
        monkeypatch.setenv(build.VARIABLE, kernels)
        build.kernels.cache_clear()
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 12)) for _ in range(8)))
        x = torch.randn(4, 7, 12)
        step = detente.compile(
            model, lambda m, b: m(b).square().mean(), torch.optim.Adam(model.parameters(), lr=0.01),
            example_batch=x, quiet=True, cache=False, **options,
        )  # fmt: skip
        losses.append([float(step(x)) for _ in range(4)])
        assert (LAYER_NORM in step.programs[0].compiled.executable.as_text()) is (kernels == "1")
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_one_inside_of_a_gradient_penalty_is_differentiated_twice() -> None:
    """The kernel has no second derivative."""

    def penalty(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(batch).square().sum(), batch, create_graph=True)
        return gradient.square().mean()

    torch.manual_seed(0)
    model, x = Held(nn.LayerNorm(12)), torch.randn(4, 7, 12)
    twin = Held(nn.LayerNorm(12))
    twin.load_state_dict(model.state_dict())
    step = detente.compile(
        model, penalty, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=x, quiet=True, cache=False
    )
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = penalty(twin, x)
        loss.backward()
        optimizer.step()
        assert float(step(x)) == pytest.approx(loss.item(), rel=1e-4)


def test_another_shape_than_it_says_is_refused() -> None:
    x, w, r = np.ones((4, 3), np.float32), np.ones(3, np.float32), np.ones(4, np.float32)
    calls = {
        LAYER_NORM: ([(4, 3), (4,), (4,)], (x, w, w), {"eps": 1e-5}),
        OF_LAYER_NORM: ([(4, 3), (3,), (3,)], (x, w, r, r, x), {}),
    }
    for target, (results, operands, more) in calls.items():

        def run(target: str = target, results: Any = results, operands: Any = operands, **said: Any) -> Any:
            return jax.block_until_ready(jax.jit(lambda: call(target, results, *operands, **said))())

        run(rows=4, columns=3, **more)
        for rows, columns in ((5, 3), (4, 4), (3, 4), (0, 3), (-4, -3)):
            with pytest.raises(Exception, match="other shapes than it says"):
                run(rows=rows, columns=columns, **more)


def test_who_reads_a_program_sees_the_norm() -> None:
    torch.manual_seed(0)
    model, x = Held(nn.LayerNorm(12)), torch.randn(4, 7, 12)
    step = detente.compile(
        model, lambda m, b: m(b).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=x, quiet=True, cache=False,
    )  # fmt: skip
    float(step(x))
    (module,) = step.programs[0].compiled.executable.runtime_executable().hlo_modules()
    found = count_program(module.as_serialized_hlo_module_proto(), "hlo")
    assert found.norms == {"layer-norm": 1, "layer-norm-grad": 1}
    assert not [target for target in found.custom_calls if "norm" in target]
    assert "reductions" in kinds_of(read_hlo(module.as_serialized_hlo_module_proto())).values()
