"""A mask that went into the program because it is causal, or sees everything, and is written later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detente
from tests.bridge.between.loops import World, equal

CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
HOLE = CAUSAL.clone()
HOLE[3:, 1] = False
MASKS = {
    "causal, then a window": (CAUSAL, CAUSAL & torch.ones(6, 6, dtype=torch.bool).triu(-1)),
    "all, then a hole": (torch.ones(6, 6, dtype=torch.bool), HOLE),
    "zeros, then a bias": (torch.zeros(6, 6), -(torch.arange(6)[:, None] - torch.arange(6)).abs().float()),
    "a hole, then causal": (HOLE, CAUSAL),
}


class Attends(nn.Module):
    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 3)
        self.register_buffer("mask", mask.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unsqueeze(1) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).squeeze(1)[:, -1])


def batches() -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(5)
    return [
        {"x": 2 * torch.randn(5, 6, 8, generator=made), "y": torch.randint(0, 3, (5,), generator=made)}
        for _ in range(6)
    ]


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def how_of(mask: torch.Tensor) -> dict[str, Any]:
    """SGD: the gradient of a key's bias is rounding alone, and Adam makes whole steps of that."""
    return {
        "build": lambda: Attends(mask),
        "loss": lambda world: loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "example": batches()[0],
    }


def writes(mask: torch.Tensor, how: str) -> Any:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            if i == 3:
                if how == "copy_":
                    world.model.mask.copy_(mask)
                elif how == ".data":
                    world.model.mask.data.copy_(mask)
                else:
                    world.model.load_state_dict({**world.model.state_dict(), "mask": mask})
            losses.append(world.step(batch))
        return losses

    return loop


@pytest.mark.parametrize("how", ["copy_", ".data", "load_state_dict"])
@pytest.mark.parametrize("name", MASKS)
def test_another_mask_is_another_program(name: str, how: str) -> None:
    first, then = MASKS[name]
    equal(writes(then, how), **how_of(first))


def test_the_same_mask_compiles_nothing() -> None:
    world = equal(writes(CAUSAL, "load_state_dict"), **how_of(CAUSAL))
    assert len(world.more["compiled"].programs) == 1


def test_restart_with_another_mask() -> None:
    found = []
    for mask in (HOLE, CAUSAL):
        torch.manual_seed(0)
        model = Attends(mask)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        step = detente.compile(model, loss, sgd, example_batch=batches()[0], cache=False, quiet=True)
        float(step(batches()[0]))
        torch.manual_seed(0)
        step.restart(dict(Attends(HOLE).state_dict()))
        found.append([float(step(batch)) for batch in batches()])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_pure_function_reads_the_mask_that_it_is_given() -> None:
    torch.manual_seed(0)
    model, batch = Attends(CAUSAL), batches()[0]
    function = detente.functional(model, loss, batch)
    import jax

    arrays = jax.tree.map(lambda tensor: tensor.numpy(), batch)
    for mask in (CAUSAL, HOLE):
        model.mask.copy_(mask)
        value = function(function.params, arrays, buffers={**function.buffers, "mask": mask.numpy()})
        value = value[0] if isinstance(value, tuple) else value
        assert float(value) == pytest.approx(float(loss(model, batch)), rel=1e-5)
