"""``step.profile``: what it tells adds up, and the training never hears of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from detente.programs.parts import Part


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.drop, self.down = (
            nn.LayerNorm(32), nn.Linear(32, 64), nn.Dropout(0.1), nn.Linear(64, 32)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.drop(torch.relu(self.up(self.norm(x)))))


def training(layers: int = 3, **options: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(layers)), nn.BatchNorm1d(32), nn.Linear(32, 5))
    batch = (torch.randn(16, 32), torch.randint(5, (16,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = bridge.compile(
        model,
        lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]),
        optimizer,
        example_batch=batch,
        seed=0,
        cache=False,
        **options,
    )
    return step, model, batch


def test_the_training_is_bitwise_the_same_whenever_somebody_looks() -> None:
    plain, module, batch = training()
    wanted = [float(plain(batch)) for _ in range(4)]
    step, looked, batch = training()
    found = []
    for _ in range(4):
        step.profile(batch, steps=1)  # before the first step, while the certificate is open, and behind it
        found.append(float(step(batch)))
    assert found == wanted
    plain.sync_to_torch(), step.sync_to_torch()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, looked.state_dict()[name]), name
    assert step.certificate.ok and step.count == 4


def test_what_it_tells_adds_up_and_is_of_this_model() -> None:
    step, _, batch = training()
    found = step.profile(batch, steps=3).of
    assert found.computed + found.dispatch == pytest.approx(found.watched_s) or found.dispatch == 0
    for table in (found.by_work(), found.by_direction(), found.by_part()):
        assert sum(table.values()) == pytest.approx(found.computed)
        assert min(table.values()) >= 0
    parts = set(found.by_part())
    assert {Part("*.up", "forward"), Part("*.up", "backward"), Part("*.down", "forward")} <= parts
    assert found.by_work()["products"] > 0 and found.by_work()["optimizer"] > 0
    assert found.by_work()["random numbers"] > 0
    # By number: a kernel of microseconds that loses the processor for one would carry a share of seconds with it.
    guessed = {s.part.path for s in found.slices if not s.known}
    assert guessed <= {"0.drop"}  # the call's key, which all masks share
    assert sum(not s.known for s in found.slices) < len(found.slices) / 4
    assert 0 < found.covered <= 1 and found.cpu_s is not None and found.cpu_s > 0
    assert 0 <= found.idle < found.threads * found.step_s  # type: ignore[operator]


def test_a_rolled_step_that_computes_again_says_how_much() -> None:
    step, _, batch = training(layers=9, form="rolled+full", certificate="none")
    found = step.profile(batch, steps=2).of
    assert found.by_direction()["remat"] > 0


def test_frozen_weights_and_what_was_written_between_steps_are_profiled_as_they_are() -> None:
    step, model, batch = training(certificate="none")
    step(batch)
    with torch.no_grad():
        model[-1].weight.fill_(1.0)
    step.profile(batch, steps=1)
    step.sync_to_torch()
    assert torch.equal(model[-1].weight, torch.ones(5, 32))


@pytest.mark.parametrize("steps", [0, -1])
def test_less_than_a_step_is_none(steps: int) -> None:
    step, _, batch = training(certificate="none")
    with pytest.raises(ValueError, match="one step or more"):
        step.profile(batch, steps=steps)


def test_a_profile_inside_of_somebodys_own_is_told(tmp_path: Path) -> None:
    import jax

    step, _, batch = training(certificate="none")
    with jax.profiler.trace(str(tmp_path)), pytest.raises(bridge.Refused, match="profiler could not run"):
        step.profile(batch, steps=1)
    assert step.profile(batch, steps=1).of.step_s > 0


def test_a_runtime_that_writes_no_profile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    step, _, batch = training(certificate="none")
    monkeypatch.setattr("detente.bridge.step.profile.watch", lambda *_: (None, {}))
    with pytest.raises(bridge.Refused, match="wrote no profile"):
        step.profile(batch)
    monkeypatch.setattr("detente.bridge.step.profile.watch", lambda *_: (b"", {"plain_s": 1.0}))
    with pytest.raises(bridge.Refused, match="no operation of this program"):
        step.profile(batch)


class Odd(nn.Module):
    """Modules under names that control flow has, and the scopes of the bridge's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        self.cond, self.root, self.checkpoint = (nn.Linear(32, 32) for _ in range(3))
        self.optimizer = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.optimizer(torch.relu(self.checkpoint(self.root(self.cond(self.body(x))))))


def test_a_module_is_known_whatever_it_is_called() -> None:
    torch.manual_seed(0)
    model = Odd()
    batch = (torch.randn(16, 32), torch.randint(5, (16,)))
    step = bridge.compile(
        model,
        lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]),
        torch.optim.SGD(model.parameters(), lr=1e-2),
        example_batch=batch,
        seed=0,
        cache=False,
        certificate="none",
    )
    found = step.profile(batch, steps=2).of
    held = {part.path for part in found.by_part() if part.direction == "backward"}
    assert {"body.0", "body.1", "cond", "checkpoint", "optimizer"} <= held
    # The module's own operations are at ``root`` as well.
    assert Part("root", "backward") in found.by_part() and found.by_direction()["optimizer"] > 0
