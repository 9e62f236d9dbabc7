"""Training loops that change something between their steps, run twice: in eager PyTorch and through the bridge.

A loop is written once. It is given ``step(batch) -> loss``, the module, the optimizer and what else it trains with; it
must not know who steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import detente

STEPS = 8
SEEN = "DETENTE_LOOPS_SEEN"  # names the file where ``tests.bridge.between`` wants to be told what was seen


def saw(outcome: str) -> None:
    """This test's loop was ``equal`` to eager PyTorch's, or ``refused``."""
    if path := os.environ.get(SEEN):
        file, _, name = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].partition("::")
        with open(path, "a") as out:
            out.write(json.dumps({"test": f"{Path(file).stem}::{name}", "outcome": outcome}) + "\n")


class Net(nn.Module):
    """Two layers, BatchNorm and dropout, with numbers that a loop may move."""

    def __init__(self) -> None:
        super().__init__()
        # No bias in front of BatchNorm: its gradient is rounding alone, and Adam makes whole steps of that.
        self.first, self.norm, self.last = nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.drop = nn.Dropout(0.0)
        self.beta, self.cfg, self.seen = 1.0, {"w": 0.5, "more": [0.1, 0.2]}, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(self.drop(x)) * self.beta + self.cfg["w"] * self.cfg["more"][1]


@dataclass
class World:
    """What a loop holds."""

    model: Any
    optimizer: torch.optim.Optimizer
    step: Callable[[Any], Any]
    more: dict[str, Any] = field(default_factory=dict)


def batches(count: int = STEPS, rows: int = 12) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(5)
    return [
        {"x": torch.randn(rows, 6, generator=made), "y": torch.randint(0, 3, (rows,), generator=made)}
        for _ in range(count)
    ]


def stepping(world: World, change: Callable[[int], Any], count: int = STEPS) -> list[float]:
    """Steps, and ``change(i)`` before each; what it returns is compared like the losses."""
    found = []
    for i, batch in enumerate(batches(count)):
        looked = change(i)
        found += [] if looked is None else [looked]
        found.append(world.step(batch))
    return found


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def eager(model: nn.Module, loss: Any, optimizer: torch.optim.Optimizer) -> Callable[[Any], Any]:
    def step(batch: Any) -> float:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(value.detach())

    return step


def run(
    loop: Callable[[World], Any],
    *,
    bridge: bool,
    build: Callable[[], nn.Module] = Net,
    loss: Callable[[World], Any] = lambda world: cross_entropy,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=1e-2),
    example: Any = None,
    **options: Any,
) -> tuple[list[float], dict[str, torch.Tensor], World]:
    """(losses, state_dict at the end, the world)."""
    torch.manual_seed(0)
    model = build()
    world = World(model, optimizer(model.parameters()), lambda batch: None)
    function = loss(world)
    if bridge:
        compiled = detente.compile(
            model,
            function,
            world.optimizer,
            example_batch=example or batches()[0],
            seed=3,
            cache=False,
            **options,
        )
        world.more["compiled"] = compiled
        world.step = lambda batch: float(compiled(batch))
    else:
        world.step = eager(model, function, world.optimizer)
    try:
        losses = loop(world) or []
    except detente.bridge.Refused:
        saw("refused")
        raise
    return losses, {n: t.clone() for n, t in model.state_dict().items()}, world


def equal(loop: Callable[[World], Any], *, rtol: float = 2e-4, **how: Any) -> World:
    """Runs the loop both ways and holds losses, parameters and buffers against each other."""
    losses, state, _ = run(loop, bridge=False, **how)
    ours, mine, world = run(loop, bridge=True, **how)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(losses), rtol=rtol, atol=2e-5)
    assert state.keys() == mine.keys()
    for name in state:
        torch.testing.assert_close(
            mine[name], state[name], rtol=rtol, atol=5e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    saw("equal")
    return world
