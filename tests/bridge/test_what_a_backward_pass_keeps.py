"""What a forward pass leaves in memory for the backward pass: of an activation one tensor, as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import detente

ROWS, WIDE, LAYERS = 512, 256, 8
EACH = 4 * ROWS * WIDE  # bytes of one layer's numbers

# What a layer keeps: what its product reads, and of a GELU, which no result tells of, what it was given.
ACTIVATIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "relu": (torch.relu, 1),
    "relu6": (F.relu6, 1),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 2.0), 1),
    "gelu": (F.gelu, 2),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), 2),
}


class Stack(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(LAYERS))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.function(layer(x))
        return x


def stepped(model: nn.Module, x: torch.Tensor) -> Any:
    return detente.compile(
        model, lambda m, b: m(b).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=x, form="unrolled", certificate="none", cache=False, quiet=True,
    )  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_keeps_what_eagers_does(name: str) -> None:
    function, most = ACTIVATIONS[name]
    torch.manual_seed(0)
    step = stepped(Stack(function), x := torch.randn(ROWS, WIDE))
    float(step(x))
    held = step.programs[0].compiled.executable.memory_analysis().temp_size_in_bytes
    # Beside them the gradients that are on their way, of numbers and of one weight.
    assert held <= (most * LAYERS + 3.5) * EACH, held / EACH


def test_a_batch_norms_result_goes_when_its_relu_is_there() -> None:
    torch.manual_seed(0)
    channels, size, layers = 16, 32, 12
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels), nn.ReLU())
            for _ in range(layers)
        ),
        nn.Flatten(),
    )  # fmt: skip
    x = torch.randn(8, channels, size, size)
    step = stepped(model, x)
    float(step(x))
    held = step.programs[0].compiled.executable.memory_analysis().temp_size_in_bytes
    # What the norm reads and what its ReLU gives; gradients on their way, and the batch with its channels last.
    each = 4 * x.numel()
    assert held <= (2 * layers + 5) * each, held / each


INF = float("inf")
# XLA's CPU takes what is no normal number for 0, in every operator; there is none here.
VALUES = [float("nan"), INF, -INF, 0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0, 6.0, 7.0, 0.5, -0.5, 2.0, -3.0]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_its_gradient_is_torchs_at_every_edge(name: str, dtype: torch.dtype) -> None:
    function, _ = ACTIVATIONS[name]
    x = torch.tensor(VALUES, dtype=dtype)

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(x.clone())

        def forward(self, scale: torch.Tensor) -> torch.Tensor:
            return (function(self.x) * scale).nan_to_num(0.0, 0.0, 0.0).sum()

    scale = torch.tensor([1.0, -1.0] * len(VALUES), dtype=dtype)[: len(VALUES)]
    eager = Held()
    eager(scale).backward()
    wanted = (eager.x - eager.x.grad).detach()
    model = Held()
    step = detente.compile(
        model, lambda m, b: m(b), torch.optim.SGD(model.parameters(), lr=1.0), example_batch=scale,
        certificate="none", cache=False, quiet=True,
    )  # fmt: skip
    float(step(scale))
    exact = {torch.float32: 2e-6, torch.float64: 1e-9, torch.bfloat16: 1e-2}[dtype]
    assert torch.allclose(model.x.detach(), wanted, rtol=exact, atol=exact, equal_nan=True), (model.x, wanted)


class Bounded(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.layer, self.again = nn.Linear(12, 12), again
        self.register_buffer("bound", torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def clamped(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten.hardtanh(x, -1.0, self.bound.item() * 0.7)

        x = self.layer(x)
        return checkpoint(clamped, x, use_reentrant=False) if self.again else clamped(x)


@pytest.mark.parametrize("again", [False, True], ids=["once", "computed again"])
def test_a_bound_that_the_program_computes_clamps_the_gradient_too(again: bool) -> None:
    """Computed in float64, it lies beside what was rounded to float32."""
    torch.manual_seed(0)
    model, x = Bounded(again), 2 * torch.randn(64, 12)
    twin = Bounded(again)
    twin.load_state_dict(model.state_dict())
    step, optimizer = stepped(model, x), torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = twin(x).square().mean()
        loss.backward()
        optimizer.step()
        assert float(step(x)) == pytest.approx(loss.item(), rel=1e-5)
