"""The museum's torch rows whose fault lies in the process and not in the step."""

from __future__ import annotations

from typing import Any

from detente.stacks.torch_eager import TorchEager, TorchRunning
from tests.museum import tricks


class _Sleeps(tricks.Sleeps, TorchRunning):
    pass


class SleepsInTheWait(TorchEager):
    running = _Sleeps


class _Reads(tricks.Reads, TorchRunning):
    pass


class ReadsTheLoss(TorchEager):
    """A loss that is read in every step and returned as a tensor: nothing in the handle shows it."""

    running = _Reads


class _Collects(tricks.Collects, TorchRunning):
    pass


class TurnsTheCollectorOn(TorchEager):
    running = _Collects


class Niced(tricks.Nice, TorchEager):
    pass


class _NiceLater(tricks.NiceLater, TorchRunning):
    pass


class NicedInTheWindow(TorchEager):
    running = _NiceLater


class OnOtherCores(tricks.OtherCores, TorchEager):
    pass


class WithAHelper(tricks.Helper, TorchEager):
    pass


class WithADaemon(tricks.Daemon, TorchEager):
    pass


class MoreThreads(TorchEager):
    """Twice the threads that it was asked for."""

    def start(self, device: str, precision: str, threads: int) -> str:
        return super().start(device, precision, 2 * threads)


class FewerThreads(TorchEager):
    """torch's own Timer uses one thread by default; XLA uses every core."""

    def start(self, device: str, precision: str, threads: int) -> str:
        return super().start(device, precision, max(1, threads // 2))


class Profiled(tricks.Profiled, TorchEager):
    pass


class Flagged(tricks.Flagged, TorchEager):
    pass


class TwoFrameworks(TorchEager):
    """A logging callback, say, that imports the other framework."""

    def start(self, device: str, precision: str, threads: int) -> str:
        import importlib

        importlib.import_module("jax")
        return super().start(device, precision, threads)


class FlushesDenormals(TorchEager):
    def start(self, device: str, precision: str, threads: int) -> str:
        found = super().start(device, precision, threads)
        self.torch.set_flush_denormal(True)
        return found


class Bf16Products(TorchEager):
    """Its products run in another precision than every flag says."""

    def product(self, a: Any, b: Any) -> Any:
        self.compute = self.torch.bfloat16
        return super().product(a, b)


class OnlyOnce(tricks.OnlyOnce, TorchEager):
    pass


class Drifts(tricks.Drifts, TorchEager):
    pass
