"""Norms that are alike are traced once, and the program is the one that it was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge.graph import Node
from detente.bridge.lower.driver import load_table
from detente.bridge.lower.sharing import Shared
from detente.bridge.lower.table import TABLE
from tests.bridge.test_channels_last import agrees


class Layer(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(6, 6), nn.LayerNorm(6, eps=eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.norm(self.mix(x)))


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


def layers() -> nn.Module:
    return nn.Sequential(Layer(1e-5), Layer(1e-5), Layer(1e-3), Layer(1e-5))


def blocks() -> nn.Module:
    return nn.Sequential(Block(4), Block(4), Block(4), nn.GroupNorm(2, 4), nn.GroupNorm(4, 4))


def groups() -> nn.Module:
    return nn.Sequential(nn.RMSNorm(6), Layer(1e-5), nn.RMSNorm(6), nn.RMSNorm(6, eps=1e-4))


# name -> model, its input, and how often an operator is traced forwards
CASES: dict[str, tuple[Any, tuple[int, ...], dict[str, int]]] = {
    "layer norms, of two epsilons": (layers, (3, 6), {"aten.layer_norm.default": 2}),
    "batch and group norms": (
        blocks,
        (2, 4, 5, 5),
        {"aten._native_batch_norm_legit_functional.default": 1, "aten.group_norm.default": 2},
    ),
    "RMS norms": (groups, (3, 6), {"aten.rms_norm.default": 2, "aten.layer_norm.default": 1}),
}


def compiled(model: nn.Module, x: torch.Tensor) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return detente.compile(
        model, lambda m, b: m(b).square().mean(), optimizer, example_batch=x, certificate="none", cache=False
    )


@pytest.mark.parametrize("name", CASES)
def test_alike_ones_are_traced_once_and_train_as_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape, wanted = CASES[name]
    traced: Counter[str] = Counter()
    own = Shared.__call__

    def counted(self: Shared, lower: Any, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            traced[node.op] += 1
            return lower(*given, **named)

        return own(self, noted, node, args, kwargs)

    monkeypatch.setattr(Shared, "__call__", counted)
    torch.manual_seed(0)
    step = compiled(make(), torch.randn(*shape))
    assert step.choice.form == "unrolled"
    assert dict(traced) == wanted
    monkeypatch.undo()
    agrees(make(), torch.randn(*shape))


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_program_is_the_one_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape, _ = CASES[name]
    found = []
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr(
                Shared, "__call__", lambda self, lower, node, args, kwargs: lower(*args, **kwargs)
            )
        torch.manual_seed(0)
        model, x = make(), torch.randn(*shape)
        step = compiled(model, x)
        losses = [float(step(x)) for _ in range(3)]
        text = step.programs[0].compiled.executable.as_text()
        found.append((losses, Counter(re.findall(r" (fusion|custom-call|copy|dot|convolution)\(", text))))
    assert found[0] == found[1]


def test_every_shared_entry_asks_for_nothing_but_its_tensors() -> None:
    """No draw and no fault: those belong to one call."""
    load_table()
    shared = [entry for entry in TABLE.values() if entry.shared]
    assert shared and not any(entry.random for entry in shared)
    for entry in shared:
        names = entry.lower.__code__.co_names
        assert not {"key", "fault", "run", "function", "merge"} & set(names), entry.op
