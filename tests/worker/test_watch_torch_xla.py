"""Which reads of a lazy step count: those behind the model's own forward. Counters are a stand-in's."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    found: dict[str, int] = {}
    metrics = ModuleType("torch_xla.debug.metrics")
    metrics.counter_value = found.get  # type: ignore[attr-defined]
    metrics.metric_data = lambda name: (1, 7, [(0.0, 7)])  # type: ignore[attr-defined]
    debug, package = ModuleType("torch_xla.debug"), ModuleType("torch_xla")
    debug.metrics = metrics  # type: ignore[attr-defined]
    for name, module in (
        ("torch_xla", package),
        ("torch_xla.debug", debug),
        ("torch_xla.debug.metrics", metrics),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return found


class Asks(torch.nn.Module):
    """Reads a value on its way, as transformers' mask code does."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.inner, self.read = torch.nn.Linear(2, 2), read

    def forward(self, x):
        self.read()
        return self.inner(x)


def test_what_a_model_asks_on_its_way_is_its_own(counters: dict[str, int]) -> None:
    from detente.worker.watch.in_torch_xla import watch

    def read() -> None:
        counters["aten::_local_scalar_dense"] = counters.get("aten::_local_scalar_dense", 0) + 1

    model = Asks(read)
    before = len(torch.nn.modules.module._global_forward_hooks)
    assert watch(lambda: model(torch.ones(2)))["reads"] == 0

    def reads_its_loss() -> None:
        loss = model(torch.ones(2)).sum()
        read()
        loss.backward()
        model(torch.ones(2))  # computed again: behind the forward, and counted

    found = watch(reads_its_loss)
    assert found["reads"] == 2 and found["aliased"] == 7
    # Without a module everything counts.
    assert watch(read)["reads"] == 1
    assert len(torch.nn.modules.module._global_forward_hooks) == before
