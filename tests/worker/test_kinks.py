"""Biases move away from kinks, whatever stands between them, and every batch is held clear."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente.worker.kinks import WITHIN, clear, look


class Heads(nn.Module):
    """A product whose result is cut into heads and turned before its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).view(*x.shape[:-1], 8).transpose(0, -1)
        return F.relu(y)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)) + torch.sin(x))


class Twice(nn.Module):
    """One bias in front of two ReLUs: the second cannot move it again."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.one(F.relu(self.one(x))))


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight + self.bias).relu_()


ROWS, PICTURES = (40, 6), (5, 3, 8, 8)
# Module, shape of a batch, biases that move, ReLUs that are left.
CASES: dict[str, tuple[Any, tuple[int, ...], int, int]] = {
    "a product": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU()), ROWS, 1, 0),
    "written out": (Added, ROWS, 1, 0),
    "leaky": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU()), ROWS, 1, 0),
    "normalised rows": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU()), ROWS, 1, 0),
    "heads": (Heads, (4, 10, 6), 1, 0),
    "a residual": (Residual, PICTURES, 1, 0),
    "a group norm": (lambda: nn.Sequential(nn.GroupNorm(1, 3), nn.ReLU()), PICTURES, 1, 0),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU()), ROWS, 0, 1),
    "behind what loses it": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.ReLU()), ROWS, 0, 1),
    "the same bias twice": (Twice, ROWS, 1, 1),
    "deep": (lambda: nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(6, 6), nn.ReLU()))), ROWS, 4, 0),
    "smooth": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Softmax(-1)), ROWS, 0, 0),
}


def inputs_of_relus(module: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """By torch's own word: where autograd saved a ReLU's result, its input is behind it."""
    from torch.overrides import TorchFunctionMode

    seen: list[torch.Tensor] = []

    class See(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in ("relu", "relu_", "leaky_relu"):
                seen.append(args[0].detach().clone())
            return func(*args, **(kwargs or {}))

    with See(), torch.no_grad():
        module(batch)
    return seen


@pytest.mark.parametrize("name", CASES)
def test_every_batch_lies_clear_of_every_relu_whose_bias_moved(name: str) -> None:
    make, shape, moves, left = CASES[name]
    torch.manual_seed(0)
    module = make().double()
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    drawn = np.random.default_rng(0)
    batches = [{"x": drawn.normal(size=shape)} for _ in range(4)]
    running: Any = SimpleNamespace(
        module=module, place=lambda b: {n: torch.from_numpy(a) for n, a in b.items()}
    )
    kinks, moved = clear(running, lambda b: module(b["x"]), batches)
    assert (kinks.moved, len(moved), kinks.left) == (moves, moves, left)
    after = dict(module.named_parameters())
    for parameter, tensor in after.items():
        far = float((tensor - before[parameter]).detach().abs().max())
        assert (0 < far <= WITHIN * 1.0001) if parameter in moved else far == 0, parameter
    for parameter, array in moved.items():
        assert array.dtype == np.float32
        assert torch.equal(torch.from_numpy(array).double(), after[parameter].detach())
    if moves and not left:
        found = [t for b in batches for t in inputs_of_relus(module, torch.from_numpy(b["x"]))]
        # In standard deviations of one batch, where ``nearest`` is in those of all.
        assert min(float(t.abs().min() / t.std()) for t in found) >= 0.8 * kinks.nearest > 1e-4


def test_a_look_moves_nothing() -> None:
    module = Residual().train()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    x = torch.randn(PICTURES)
    assert look(module, lambda: F.max_pool2d(module(x), 2)).met == {"relu": 1, "max_pool2d_with_indices": 1}
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())


def test_batches_whose_rows_do_not_stand_along_one_axis_leave_the_first() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU()).double()
    batches = [
        {"x": np.random.default_rng(i).normal(size=(9, 6)), "scale": np.float64(2.0).reshape(())}
        for i in range(3)
    ]
    running: Any = SimpleNamespace(
        module=module, place=lambda b: {n: torch.as_tensor(a) for n, a in b.items()}
    )
    kinks, _ = clear(running, lambda b: module(b["x"]) * b["scale"], batches)
    assert kinks.moved == 1
