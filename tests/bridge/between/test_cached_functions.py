"""Tables that a model or a loss keeps behind ``functools.lru_cache``, filled first by whatever runs it first: a capture
leaves nothing there that eager could not compute with."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from detente import bridge
from tests.bridge.between.loops import Net, World, batches, equal, run


def made(length: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.sin(torch.arange(length, dtype=torch.float32))


@functools.cache
def unbounded(length: int, scale: float = 1.0) -> torch.Tensor:
    return made(length, scale)


@functools.lru_cache(maxsize=2)
def bounded(length: int, scale: float = 1.0) -> tuple[torch.Tensor, int]:
    return made(length, scale), length


@functools.cache
def drawn(length: int) -> torch.Tensor:
    return torch.randn(length)


CACHES: tuple[Any, ...] = (unbounded, bounded, drawn)


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


class Table(Net):
    """Multiplies its input by a table."""

    def __init__(self, table: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table = table
        self.held = functools.lru_cache(made)
        self.many = [functools.lru_cache(made)]
        self.few = (functools.lru_cache(made), functools.partial(functools.lru_cache(made), scale=2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * (1.5 + self.table(self, x)))

    static = staticmethod(functools.lru_cache(made))

    @functools.lru_cache  # noqa: B019
    def method(self, length: int) -> torch.Tensor:
        return made(length, self.cfg["w"])

    @functools.lru_cache  # noqa: B019
    def of_weights(self) -> torch.Tensor:
        return 2.0 * self.first.weight.detach()[0]

    def __hash__(self) -> int:
        return id(self)


TABLES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "a global": lambda net, x: unbounded(x.shape[1]),
    "with a keyword": lambda net, x: unbounded(x.shape[1], scale=2.0) + unbounded(x.shape[1]),
    "with a bound": lambda net, x: bounded(x.shape[1])[0] + bounded(1)[1],
    "of a closure": lambda net, x: of_a_closure(x.shape[1]),
    "an attribute": lambda net, x: net.held(x.shape[1]),
    "in a list": lambda net, x: net.many[0](x.shape[1]),
    "in a tuple": lambda net, x: net.few[0](x.shape[1]),
    "in a partial": lambda net, x: net.few[1](x.shape[1]),
    "a static method": lambda net, x: net.static(x.shape[1]),
    "a method": lambda net, x: net.method(x.shape[1]),
}


def _closure() -> Callable[[int], torch.Tensor]:
    kept = functools.lru_cache(made)
    return lambda length: kept(length).view(-1)


of_a_closure = _closure()


def trains_and_validates(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches(4)):
        losses.append(world.step(batch))
        if i in (0, 3):
            with torch.no_grad():
                losses.append(float(world.model(batch["x"]).square().mean()))
    return losses


@pytest.mark.parametrize("which", TABLES)
def test_a_table_that_the_capture_fills(which: str) -> None:
    def once(world: World) -> list[float]:
        if "compiled" not in world.more:  # the next to be run is the capture
            losses = trains_and_validates(world)
            unbounded.cache_clear()
            bounded.cache_clear()
            return losses
        return trains_and_validates(world)

    world = equal(once, build=lambda: Table(TABLES[which]))
    assert len(world.more["compiled"].programs) == 1


def test_a_table_that_was_put_aside_before() -> None:
    """``gc.freeze()``, which loops call for speed: what is put aside, the collector does not tell of."""

    def build() -> Table:
        model = Table(TABLES["in a tuple"])
        gc.freeze()
        return model

    try:
        equal(trains_and_validates, build=build)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_what_is_drawn_once_stays() -> None:
    """Its first call is the capture's: a program that drew it itself would draw another one in every step."""

    def build() -> Table:
        return Table(lambda net, x: drawn(x.shape[1]))

    ours, mine, _ = run(trains_and_validates, bridge=True, build=build, certificate="none")
    assert type(drawn(6)) is torch.Tensor and drawn.cache_info().misses == 1
    losses, state, _ = run(trains_and_validates, bridge=False, build=build)  # finds what the capture drew
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(losses), rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(mine["first.weight"], state["first.weight"], rtol=2e-4, atol=5e-5)


def test_what_was_there_before_is_what_is_read() -> None:
    def build() -> Table:
        unbounded.cache_clear()
        unbounded(6).mul_(3.0)
        return Table(TABLES["a global"])

    equal(trains_and_validates, build=build)


def test_what_follows_from_weights_is_refused_by_name() -> None:
    with pytest.raises(bridge.Refused, match=r"of_weights keeps what follows from weights"):
        run(lambda world: [], bridge=True, build=lambda: Table(lambda net, x: net.of_weights()))
    assert Table.of_weights.cache_info().currsize == 0


def test_with_a_tensor_it_is_part_of_the_program() -> None:
    """Every step has another tensor, so that nothing is ever found."""
    cached = functools.lru_cache(lambda x: x.mean(0))
    equal(trains_and_validates, build=lambda: Table(lambda net, x: cached(x)))
