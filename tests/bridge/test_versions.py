"""The versions of a module's parts go along with its ``state_dict``: one that migrates older files asks for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente import bridge

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """Files of its first version held the scale itself, and not its logarithm."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.log_scale = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.log_scale.exp()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        if local_metadata.get("version") != 2:
            state_dict[prefix + "log_scale"] = state_dict[prefix + "log_scale"].abs().add(1e-6).log()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class Hooked(Scaled):
    """Its state_dict is the module's own affair."""

    def get_extra_state(self) -> int:
        return 1

    def set_extra_state(self, state: int) -> None:
        pass


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def loaded(kind: type[Scaled], state: Any) -> dict[str, torch.Tensor]:
    fresh = kind()
    fresh.load_state_dict(state, strict=False)
    return {name: tensor.detach() for name, tensor in fresh.named_parameters()}


@pytest.mark.parametrize("kind", [Scaled, Hooked])
def test_state_dict_and_averages_of_a_step(kind: type[Scaled]) -> None:
    model = kind()
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    step = bridge.compile(model, loss, sgd, example_batch=X, ema=0.5, certificate="none", cache=False)
    for _ in range(3):
        step(X)
    for state in (step.state_dict(), step.averages()):
        found = loaded(kind, state)
        assert found["log_scale"].abs().max() > 0
        assert all(torch.equal(tensor, state[name]) for name, tensor in found.items())


def test_state_dict_of_a_pure_function() -> None:
    f = detente.functional(Scaled(), loss, X)
    moved = {name: value - 0.1 for name, value in f.params.items()}
    assert torch.equal(loaded(Scaled, f.state_dict(moved))["log_scale"], torch.full((3,), -0.1))
