"""The study's torch loop as a stack: nothing waits for the device. On a CPU eager PyTorch has nothing to wait for."""

from __future__ import annotations

from typing import Any

from detente.stacks.torch_eager import TorchEager, TorchRunning


class _Running(TorchRunning):
    def synchronise(self, *handles: Any) -> None:
        pass


class NeverWaits(TorchEager):
    running = _Running
