"""A worker may take a little less than the machine has, unless a driver maps more than it touches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from detente.session import memory_cap


def test_a_little_less_than_is_free(tmp_path: Path) -> None:
    free = psutil.virtual_memory().available
    cap = memory_cap.of_machine("cpu", tmp_path)
    assert cap is not None and 0.8 * free < cap < free
    assert memory_cap.of_machine("auto", tmp_path) is not None


@pytest.mark.parametrize("driver", ["nvidia0", "kfd", "accel0"])
def test_none_where_there_is_an_accelerator(driver: str, tmp_path: Path) -> None:
    (tmp_path / driver).touch()
    assert memory_cap.of_machine("auto", tmp_path) is None
    assert memory_cap.of_machine("cuda", tmp_path) is None
    assert memory_cap.of_machine("cpu", tmp_path) is not None


def test_none_where_hardly_anything_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        memory_cap.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20, total=2**35)
    )
    assert memory_cap.of_machine("cpu", tmp_path) is None


def test_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_cap, "available", lambda: 2**31)
    assert memory_cap.of_machine("cpu", tmp_path) == int(0.95 * 2**31)
