"""Each watcher, switched off, makes a loop train otherwise than eager: none is there for nothing, each has a test."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from detente import bridge
from detente.bridge.live import guard as live
from detente.bridge.live import walk, watch
from detente.bridge.live.sources import Sources
from detente.bridge.live.standing import Standing
from detente.bridge.step import exchange, filling
from tests.bridge.between import test_aliases_that_are_kept as kept
from tests.bridge.between import test_further_loops as further
from tests.bridge.between import test_loops as loops
from tests.bridge.between import test_optimizer_state as states
from tests.bridge.between.loops import equal

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def no_aliases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(live, "ALIASES", frozenset())


def no_kept_aliases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(live, "_show", lambda alias, tensor: None)


def no_strangers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exchange, "follow_strangers", lambda tensors: None)


def no_unasked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(live.Guard, "unasked", property(lambda self: False))


def clips_through_kept_data(world: Any) -> list[float]:
    kept, losses = [p.data for p in world.model.parameters()], []
    for batch in loops.batches(6):
        losses.append(world.step(batch))
        for alias in kept:
            alias.clamp_(-0.1, 0.1)
    return losses


def no_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(live.Guard, "touched", lambda self, tensor, name: None)


def no_versions(patch: pytest.MonkeyPatch) -> None:
    real = watch.Watch.look

    def look(self: Any) -> Any:
        found = real(self)
        if found is not None and found.written and not found.other:
            self._versions = [t._version for t in self._all]
            return None
        return found

    patch.setattr(watch.Watch, "look", look)


def no_module(patch: pytest.MonkeyPatch) -> None:
    """Freezing, and parts that are replaced."""
    real = watch.Watch.look

    def look(self: Any) -> Any:
        found = real(self)
        return None if found is not None and found.other else found

    patch.setattr(watch.Watch, "look", look)


def no_mode(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(watch.Watch, "mode", property(lambda self: (True,) * len(self.parts)))


def without(part: str) -> Patch:
    """A look at Python's tables that leaves one kind of them out."""

    def patched(patch: pytest.MonkeyPatch) -> None:
        real = Sources.ready

        def ready(self: Sources) -> Sources:
            setattr(self, part, [])
            return real(self)

        patch.setattr(Sources, "ready", ready)

    return patched


def no_libraries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk, "Standing", lambda places, names: Standing((), names))


def no_optimizer_table(patch: pytest.MonkeyPatch) -> None:
    for place in (exchange, filling):
        patch.setattr(place, "see", lambda optimizer, asked: False)
    patch.setattr(exchange, "unseen", lambda optimizer: False)


def a_closure_moves() -> dict[str, Any]:
    weight = 0.0

    def loss(world: Any) -> Any:
        return lambda model, batch: (
            loops.cross_entropy(model, batch) + weight * model.last.weight.square().sum()
        )

    def loop(world: Any) -> list[float]:
        nonlocal weight
        losses = []
        for i, batch in enumerate(loops.batches(4)):
            weight = 0.5 * (i // 2)
            losses.append(world.step(batch))
        return losses

    return {"loop": loop, "loss": loss}


class Empty(loops.Net):
    """A dictionary that somebody may fill."""

    def __init__(self) -> None:
        super().__init__()
        self.more: dict[str, float] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.more.get("by", 1.0)


def fills_a_table(world: Any) -> list[float]:
    losses = []
    for i, batch in enumerate(loops.batches(6)):
        if i == 4:
            world.model.more["by"] = 0.25
        losses.append(world.step(batch))
    return losses


def replaces_a_function(world: Any) -> list[float]:
    with pytest.MonkeyPatch.context() as patch:
        losses = [world.step(batch) for batch in loops.batches(2)]
        patch.setattr(torch.nn.functional, "cross_entropy", lambda out, wanted: out.square().mean())
        return [*losses, *(world.step(batch) for batch in loops.batches(2))]


NEEDED: dict[str, tuple[Patch, dict[str, Any]]] = {
    "access to memory": (no_aliases, {"loop": loops.writes_through_numpy}),
    "aliases that are kept": (no_kept_aliases, {"loop": clips_through_kept_data}),
    "memory that C binds": (no_strangers, {"loop": kept.binds_at_two(kept.binds_data), **kept.SGD}),
    "TorchScript": (no_unasked, {"loop": kept.scripts_at_two(kept.SCRIPTS["script"]), **kept.SGD}),
    "arrays of numpy": (no_unasked, {"loop": kept.array_at_two, **kept.SGD}),
    "reads": (no_reads, {"loop": loops.reads_norms}),
    "versions": (no_versions, {"loop": loops.clips_under_no_grad}),
    "the module's parts": (no_module, {"loop": loops.replaces_a_part}),
    "what is trained": (no_module, {"loop": loops.freezes_and_thaws}),
    "train and eval": (no_mode, {"loop": further.freezes_statistics}),
    "values in tables": (without("slots"), {"loop": loops.moves_an_attribute}),
    "hooks": (without("hooks"), {"loop": loops.adds_a_hook}),
    "tables that were empty": (without("empty"), {"loop": fills_a_table, "build": Empty}),
    "closures": (without("cells"), a_closure_moves()),
    "arrays": (without("arrays"), {"loop": further.writes_a_mask, "build": further.Masked}),
    "libraries": (no_libraries, {"loop": replaces_a_function}),
    "the optimizer's state": (no_optimizer_table, {"loop": states.change_at(4, states.clears)}),
}


@pytest.mark.parametrize("name", NEEDED)
def test_without_it_a_loop_trains_otherwise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch_off, how = NEEDED[name]
    equal(**how)
    switch_off(monkeypatch)
    # Otherwise than eager; or the next certificate finds it.
    with pytest.raises((AssertionError, bridge.Refused)):
        equal(**how)
