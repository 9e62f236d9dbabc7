"""The museum's JAX rows that are honest where one used to look, and not in the timed window."""

from __future__ import annotations

from typing import Any

from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_running import JaxRunning
from tests.museum import tricks


class _Cheap(JaxRunning):
    _forward: Any = None

    def cheap(self, batch: Any) -> Any:
        """The loss without backward and without the optimizer."""
        return self._forward(self.params, self.rest, batch), {}

    def step(self, batch: Any) -> Any:
        if self._forward is None:
            # Compiled before the samples, as any part of a step is.
            self._forward = self.jax.jit(lambda p, r, b: self._loss(p, r, b)[0])
            self._forward(self.params, self.rest, batch)
        return super().step(batch)


class _ByCount(tricks.ByCount, _Cheap):
    pass


class StopsByCountInJax(JaxJit):
    running = _ByCount


class _ByTime(tricks.ByTime, _Cheap):
    pass


class StopsByTimeInJax(JaxJit):
    running = _ByTime


class _ByBatch(tricks.ByBatch, _Cheap):
    pass


class StopsByBatchInJax(JaxJit):
    running = _ByBatch


class _ByLoad(tricks.ByLoad, _Cheap):
    pass


class StopsByLoadInJax(JaxJit):
    running = _ByLoad


class _ByHandOut(tricks.ByHandOut, _Cheap):
    pass


class HonestAfterHandOutInJax(JaxJit):
    running = _ByHandOut


class _EverySecond(tricks.EverySecond, _Cheap):
    pass


class UpdatesEverySecondInJax(JaxJit):
    running = _EverySecond


class _Memo(tricks.Memo, _Cheap):
    pass


class MemoisedInJax(JaxJit):
    running = _Memo


class _Half(tricks.Half, JaxRunning):
    halves: dict[int, Any]

    def place(self, batch: Any) -> Any:
        """Half of it is placed too, so that no step has to cut."""
        placed = super().place(batch)
        rows = min(a.shape[0] for a in batch.values() if a.ndim)
        self.halves = getattr(self, "halves", {})
        half = super().place({n: a[: rows // 2] if a.ndim else a for n, a in batch.items()})
        self.halves[id(placed)] = half
        return placed

    def cheap(self, batch: Any) -> Any:
        return JaxRunning.step(self, self.halves[id(batch)])


class HalfOfTheBatchInJax(JaxJit):
    running = _Half


class _LastOnly(tricks.LastOnly, JaxRunning):
    pass


class LastOfTheQueueInJax(JaxJit):
    running = _LastOnly


class _UntilAsked(tricks.UntilAsked, JaxRunning):
    pass


class DefersToLossInJax(JaxJit):
    running = _UntilAsked


class _UntilCounted(tricks.UntilCounted, JaxRunning):
    pass


class DefersToCompiledInJax(JaxJit):
    running = _UntilCounted


class _UntilNextWait(tricks.UntilNextWait, JaxRunning):
    pass


class DefersToNextWaitInJax(JaxJit):
    running = _UntilNextWait


class _Remembers(tricks.Memo, JaxRunning):
    pass


class RememberedInJax(JaxJit):
    """In a region without state, four batches have four results."""

    running = _Remembers


class _FillsLater(tricks.FillsLater, JaxRunning):
    pass


class FillsLaterInJax(JaxJit):
    running = _FillsLater


class _Rehearsed(tricks.Rehearsed, JaxRunning):
    pass


class RehearsedInJax(JaxJit):
    running = _Rehearsed


class _PaddedState(tricks.PaddedState, JaxRunning):
    pass


class PaddedStateInJax(JaxJit):
    running = _PaddedState


class _Unreplayable(tricks.Unreplayable, _Cheap):
    pass


class UnreplayableInJax(JaxJit):
    running = _Unreplayable


class _PlacesAndRemembers(tricks.PlacesAndRemembers, JaxRunning):
    pass


class PlacesAndRemembersInJax(JaxJit):
    running = _PlacesAndRemembers


class _InputsBakedIn(JaxRunning):
    """A program for each batch, which is a constant of it, made where the batch is placed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made: dict[int, tuple[Any, Any]] = {}

    def place(self, batch: Any) -> Any:
        placed = super().place(batch)
        if self.contract.region == "train-step" and not self._shapes_alone:
            whole = self.jitted.__wrapped__
            step = self.jax.jit(lambda p, r, s: whole(p, r, s, placed), donate_argnums=(0, 1, 2))
            self.made[id(placed)] = placed, step.lower(self.params, self.rest, self.opt_state).compile()
        return placed

    def step(self, batch: Any) -> Any:
        if id(batch) not in self.made:
            return super().step(batch)
        self._example = batch
        program = self.made[id(batch)][1]
        loss, self.params, self.rest, self.opt_state = program(self.params, self.rest, self.opt_state)
        return loss, {}


class InputsBakedIn(JaxJit):
    running = _InputsBakedIn
