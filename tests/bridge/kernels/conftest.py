"""Every test of this folder calls kernels, whether or not they are faster on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from detente.bridge.kernels import build
from detente.bridge.kernels.trials import CONVOLUTIONS


@pytest.fixture(autouse=True)
def called_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whether it is faster on this machine is not the question."""
    monkeypatch.setenv(build.VARIABLE, "1")
    # Both: which was asked by the files before in this process is remembered there.
    for asked in (build.kernels, build._won):
        asked.cache_clear()
    if build.kernels().why:
        pytest.skip(build.kernels().why)
    if not build._won(CONVOLUTIONS):
        pytest.skip("this torch's convolutions cannot be called")
    yield
    for asked in (build.kernels, build._won):
        asked.cache_clear()  # the next test's process decides for itself
