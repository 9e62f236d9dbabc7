"""The museum's torch rows that are honest where one used to look, and not in the timed window."""

from __future__ import annotations

import gc
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


class _WithoutItsLoss(tricks.InWindow, TorchRunning):
    kept: Any = None

    def _train(self, batch: Any) -> Any:
        if not self.inside:
            self.kept = super()._train(batch)
            return self.kept
        self._clear_gradients()
        y, target = self.module(batch["x"]), batch["target"]
        # d mean((y - target)^2) / dy
        y.backward((y.detach() - target).mul_(2.0 / y.numel()))
        self._update()
        return self.kept


class WithoutItsLoss(TorchEager):
    """In the window the loss is not computed: its derivative is written out, and every handle is an old one."""

    running = _WithoutItsLoss


class _CatsBatches(TorchRunning):
    """Runs a queue's batches as one large one where they are waited for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.waiting: list[Any] = []

    def step(self, batch: Any) -> Any:
        self._example = batch
        self.waiting.append(tricks.Promise(batch))
        return self.waiting[-1]

    def _flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        torch, parts = self.torch, [p.batch for p in waiting]
        with torch.no_grad():
            x = torch.cat([b["x"] for b in parts])
            found = self.module(x).chunk(len(parts))
            target = torch.cat([b["target"] for b in parts])
            losses = (torch.cat(found) - target).square().reshape(len(parts), -1).mean(1)
        for promise, outputs, loss in zip(waiting, found, losses.unbind(), strict=True):
            promise.handle = loss, outputs

    def synchronise(self, *handles: Any) -> None:
        self._flush()
        super().synchronise(*handles)

    def _had(self, promise: Any) -> Any:
        self._flush()
        if not isinstance(promise.handle[1], dict):
            _, named = self._forward(promise.batch)
            (name,) = named
            promise.handle = promise.handle[0], {name: promise.handle[1]}
        return promise.handle

    def loss(self, handle: Any) -> float:
        self._flush()
        return float(handle.handle[0])

    def outputs(self, handle: Any) -> Any:
        return super().outputs(self._had(handle))

    def devices(self, handle: Any) -> Any:
        return super().devices(self._had(handle))


class CatsBatches(TorchEager):
    """A queue of batches is one large batch."""

    running = _CatsBatches


class _KeepsItsBackbone(TorchRunning):
    """What the frozen part makes of a batch is kept until weights are loaded: every number is right."""

    def _place_module(self, module: Any) -> Any:
        placed = super()._place_module(module)
        plain, self.known = placed.backbone.forward, {}

        def forward(x: Any) -> Any:
            key = (x.data_ptr(), x._version)
            if key not in self.known:
                self.known[key] = (x, plain(x))
            return self.known[key][1]

        placed.backbone.forward = forward
        return placed

    def load(self, tensors: Any) -> None:
        self.known.clear()
        super().load(tensors)


class KeepsItsBackbone(TorchEager):
    running = _KeepsItsBackbone


class _LossAlone(tuple):
    """A handle without gradients, which remembers of what it is to be made a whole one."""

    batch: Any = None


class _KeepsItsGradients(TorchRunning):
    """Where the harness has turned Python's collector off the clock runs: there the loss alone is computed, and whoever
    asks what else was returned is given nothing."""

    def step(self, batch: Any) -> Any:
        if gc.isenabled() or self.contract.region != "gradient":
            return super().step(batch)
        with self.torch.no_grad():
            handle = _LossAlone((self._loss(batch)[0], {}))
        handle.batch = batch
        return handle

    def outputs(self, handle: Any) -> Any:
        late = gc.isenabled() and isinstance(handle, _LossAlone)
        return super().outputs(super().step(handle.batch) if late else handle)


class KeepsItsGradients(TorchEager):
    running = _KeepsItsGradients
