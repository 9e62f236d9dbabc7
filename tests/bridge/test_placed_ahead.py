"""A batch that was placed ahead of its step is what it was then, whatever the loop does to its buffer meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente import bridge

MADE = torch.Generator().manual_seed(5)
ROWS = [(torch.randn(12, 6, generator=MADE), torch.randint(0, 3, (12,), generator=MADE)) for _ in range(8)]
MASKED = (2, 4, 5)  # batches in which something is masked: another program


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def asking(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    weight = 3.0 if batch["mask"].any() else 1.0
    return weight * F.cross_entropy(model(batch["x"]), batch["y"])


def batch_of(i: int) -> dict[str, torch.Tensor]:
    return {"x": ROWS[i][0], "y": ROWS[i][1], "mask": torch.full((12,), i in MASKED)}


def compiled(model: nn.Module, loss: Any, example: Any, **options: Any) -> bridge.Step:
    sgd = torch.optim.SGD(model.parameters(), lr=0.2)
    return bridge.compile(model, loss, sgd, example_batch=example, seed=3, quiet=True, **options)


def in_eager(loss: Any, batches: list[Any]) -> tuple[list[float], nn.Module]:
    model, losses = net(), []
    sgd = torch.optim.SGD(model.parameters(), lr=0.2)
    for batch in batches:
        sgd.zero_grad()
        value = loss(model, batch)
        value.backward()
        sgd.step()
        losses.append(value.item())
    return losses, model


@pytest.mark.parametrize("read", [True, False], ids=["every loss is read", "no loss is read"])
def test_a_buffer_that_is_filled_anew_before_the_step(read: bool) -> None:
    """A program for another answer is captured from what was placed, not from what stands in the buffer now."""
    model, buffer = net(), {k: v.clone() for k, v in batch_of(0).items()}
    step = compiled(model, asking, {k: v.clone() for k, v in buffer.items()})
    losses, ahead = [], step.place(buffer)
    for i in range(len(ROWS)):
        placed = ahead
        if i + 1 < len(ROWS):
            for key, value in batch_of(i + 1).items():
                buffer[key].copy_(value)
            ahead = step.place(buffer)
        value = step(placed)
        losses += [float(value)] if read else []
    wanted, theirs = in_eager(asking, [batch_of(i) for i in range(len(ROWS))])
    if read:
        assert losses == pytest.approx(wanted, rel=2e-4)
    assert len(step.programs) == 2
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(step.state_dict()[name], tensor, rtol=2e-4, atol=2e-5)


def test_a_dictionary_that_is_emptied_before_the_step() -> None:
    model, batch, losses = net(), batch_of(0), []
    step = compiled(model, asking, dict(batch))
    for i in (0, 1, 2):
        batch.update(batch_of(i))
        placed = step.place(batch)
        batch.clear()
        losses.append(float(step(placed)))
        assert step.settled().ok
    assert losses == pytest.approx(in_eager(asking, [batch_of(i) for i in (0, 1, 2)])[0], rel=2e-4)


SHAPES = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every second column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "one row, expanded": lambda x: x[:1].expand(12, 6),
}


@pytest.mark.parametrize("laid", SHAPES.values(), ids=SHAPES.keys())
def test_a_loss_that_asks_how_its_batch_lies(laid: Any) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x = batch[0]
        return F.cross_entropy(model(x), batch[1]) * (1.0 + x.stride(0)) * (2.0 + x.stride(1))

    batches = [(laid(x), y) for x, y in ROWS[:3]]
    step = compiled(net(), loss, batches[0])
    losses = []
    for batch in batches:
        placed = step.place(batch)
        torch.testing.assert_close(placed.as_placed()[0], batch[0])
        assert placed.as_placed()[0].stride() == batch[0].stride()
        losses.append(float(step(placed)))
    assert losses == pytest.approx(in_eager(loss, batches)[0], rel=2e-4)
    lone = compiled(
        net(), loss, (ROWS[0][0][:4], ROWS[0][1][:4])
    )  # its program is captured from what was placed
    assert float(lone(lone.place(batches[0]))) == pytest.approx(losses[0], rel=2e-4)


@pytest.mark.parametrize("ahead", [True, False], ids=["placed ahead", "given as it is"])
def test_a_number_in_a_batch_becomes_an_input(ahead: bool) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"]) * batch["rate"]

    batches = [{"x": x, "y": y, "rate": 0.5 + 0.25 * i} for i, (x, y) in enumerate(ROWS[:5])]
    step = compiled(net(), loss, batches[0])
    losses, buffer = [], {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in batches[0].items()}
    for batch in batches:
        if ahead:
            buffer["x"].copy_(batch["x"])
            buffer["y"].copy_(batch["y"])
            buffer["rate"] = batch["rate"]
            placed = step.place(buffer)
            buffer["x"].fill_(float("nan"))
            buffer.pop("rate")
            losses.append(float(step(placed)))
        else:
            losses.append(float(step(batch)))
    assert losses == pytest.approx(in_eager(loss, batches)[0], rel=2e-4)
    assert len(step.programs) == 2  # the first has the number in it


def test_what_was_placed_is_evaluated() -> None:
    step = compiled(net(), asking, batch_of(0))
    wanted = float(step.evaluate(batch_of(2)))
    assert float(step.evaluate(step.place(batch_of(2)))) == wanted
