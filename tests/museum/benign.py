"""Honest variations in torch that a rule must not stumble over."""

from __future__ import annotations

from typing import Any

from detente.stacks.torch_eager import TorchEager, TorchRunning


class _ChannelsLastRunning(TorchRunning):
    def _place_module(self, module: Any) -> Any:
        return super()._place_module(module).to(memory_format=self.torch.channels_last)


class ChannelsLast(TorchEager):
    """Another layout in memory; the numbers are the same."""

    running = _ChannelsLastRunning


class OtherSeed(TorchEager):
    """Draws its first weights from another seed; they are overwritten anyway."""

    def build(self, workload: Any, size: Any, contract: Any) -> Any:
        self.torch.manual_seed(1234)
        return super().build(workload, size, contract)


class _ForeachRunning(TorchRunning):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for group in self.optimizer.param_groups:
            group["foreach"], group["fused"] = True, None


class Foreach(TorchEager):
    """The optimizer's loop over tensors is one call."""

    running = _ForeachRunning


class ThreadsAsAsked(TorchEager):
    """Says how many threads it wants: as many as it was given."""

    def start(self, device: str, precision: str, threads: int) -> str:
        found = super().start(device, precision, threads)
        self.torch.set_num_threads(threads)
        return found


class _KeepsRunning(TorchRunning):
    """Keeps every handle of the last sample alive."""

    kept: tuple[Any, ...] = ()

    def synchronise(self, *handles: Any) -> None:
        self.kept = handles
        super().synchronise(*handles)


class KeepsHandles(TorchEager):
    running = _KeepsRunning
