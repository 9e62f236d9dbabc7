"""The museum's torch rows that are honest where one used to look, and not in the timed window."""

from __future__ import annotations

from typing import Any

from detente.stacks.torch_eager import TorchEager, TorchRunning
from tests.museum import tricks


class _Cheap(TorchRunning):
    def cheap(self, batch: Any) -> Any:
        """The loss without backward and without the optimizer."""
        with self.torch.no_grad():
            return self._loss(batch)[0], {}


class _ByCount(tricks.ByCount, _Cheap):
    pass


class StopsByCount(TorchEager):
    running = _ByCount


class _ByTime(tricks.ByTime, _Cheap):
    pass


class StopsByTime(TorchEager):
    running = _ByTime


class _ByBatch(tricks.ByBatch, _Cheap):
    pass


class StopsByBatch(TorchEager):
    running = _ByBatch


class _ByLoad(tricks.ByLoad, _Cheap):
    pass


class StopsByLoad(TorchEager):
    running = _ByLoad


class _ByHandOut(tricks.ByHandOut, _Cheap):
    pass


class HonestAfterHandOut(TorchEager):
    running = _ByHandOut


class _EverySecond(tricks.EverySecond, _Cheap):
    pass


class UpdatesEverySecond(TorchEager):
    running = _EverySecond


class _Memo(tricks.Memo, _Cheap):
    pass


class Memoised(TorchEager):
    running = _Memo


class _Half(tricks.Half, TorchRunning):
    def cheap(self, batch: Any) -> Any:
        rows = min(t.shape[0] for t in batch.values() if t.dim())
        return self._run({n: t[: rows // 2] if t.dim() else t for n, t in batch.items()})


class HalfOfTheBatch(TorchEager):
    running = _Half


class _LastOnly(tricks.LastOnly, TorchRunning):
    pass


class LastOfTheQueue(TorchEager):
    running = _LastOnly


class _UntilAsked(tricks.UntilAsked, TorchRunning):
    pass


class DefersToLoss(TorchEager):
    running = _UntilAsked


class _UntilCounted(tricks.UntilCounted, TorchRunning):
    pass


class DefersToCompiled(TorchEager):
    running = _UntilCounted


class _UntilNextWait(tricks.UntilNextWait, TorchRunning):
    pass


class DefersToNextWait(TorchEager):
    running = _UntilNextWait


class _Remembers(tricks.Memo, TorchRunning):
    pass


class Remembered(TorchEager):
    """In a region without state, four batches have four results."""

    running = _Remembers


class _FillsLater(tricks.FillsLater, TorchRunning):
    pass


class FillsLater(TorchEager):
    running = _FillsLater


class _Rehearsed(tricks.Rehearsed, TorchRunning):
    pass


class Rehearsed(TorchEager):
    running = _Rehearsed


class _PaddedState(tricks.PaddedState, TorchRunning):
    pass


class PaddedState(TorchEager):
    running = _PaddedState


class _Unreplayable(tricks.Unreplayable, _Cheap):
    pass


class Unreplayable(TorchEager):
    running = _Unreplayable


class _PlacesAndRemembers(tricks.PlacesAndRemembers, TorchRunning):
    pass


class PlacesAndRemembers(TorchEager):
    running = _PlacesAndRemembers


class _InflatedMoments(tricks.InflatedMoments, _Cheap):
    pass


class InflatedMoments(TorchEager):
    running = _InflatedMoments
