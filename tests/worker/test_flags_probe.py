"""Flags that a stack sets where it starts are its own, and no framework's defaults."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from detente.worker.probes.flags import probe


def flags(monkeypatch: pytest.MonkeyPatch, after: dict[str, str]) -> dict[str, object]:
    for name, value in after.items():
        monkeypatch.setenv(name, value)
    found = probe(SimpleNamespace(environment={"before": {}, "after": after}), ())["flags"]  # type: ignore[arg-type]
    return {name: value for name, value in found.items() if name in after}


def test_what_start_sets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_xla", raising=False)
    after = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true", "TORCHINDUCTOR_FREEZING": "1"}
    assert flags(monkeypatch, after) == after


def test_what_importing_torch_xla_sets_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace())
    assert flags(monkeypatch, {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}) == {}
