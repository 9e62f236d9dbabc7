"""A stack that answers bf16-true with float32 weights and products: nearer to the reference, and another step."""

from __future__ import annotations

from typing import Any

from detente.stacks.torch_eager import TorchEager, TorchRunning


class _WideRunning(TorchRunning):
    def _place_module(self, module: Any) -> Any:
        return module.float()


class Wide(TorchEager):
    """Runs wide."""

    running = _WideRunning


class _HeldWideRunning(TorchRunning):
    def _place_module(self, module: Any) -> Any:
        return module.float()

    def _autocast(self) -> Any:
        return self.torch.autocast("cpu", dtype=self.torch.bfloat16)


class HeldWide(TorchEager):
    """Products in bf16, of float32 weights: mixed precision under the other's name."""

    running = _HeldWideRunning
