"""Random numbers that are not torch's: what is drawn while a program is captured is a constant of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from detente.bridge.live.sources import Sources


class Generators:
    """Python's and numpy's own, and those that model and loss hold, as they are now."""

    def __init__(self, found: Sources) -> None:
        self._all: list[tuple[str, Callable[[], Any], Callable[[Any], None], Callable[[], object]]] = [
            ("Python's random", random.getstate, random.setstate, lambda: random.seed(1)),
            (
                "numpy.random",
                lambda: np.random.get_state(legacy=False),
                np.random.set_state,
                lambda: np.random.seed(1),
            ),
        ]
        for name, own in found.generators:
            if isinstance(own, random.Random):
                self._all.append((name, own.getstate, own.setstate, lambda own=own: own.seed(1)))
            else:
                bits = own.bit_generator if isinstance(own, np.random.Generator) else own._bit_generator
                fresh = type(bits)(1).state

                def put(state: Any, bits: Any = bits) -> None:
                    bits.state = state

                self._all.append(
                    (name, lambda bits=bits: bits.state, put, lambda put=put, fresh=fresh: put(fresh))
                )
        self._before = [state() for _, state, _, _ in self._all]

    def moved(self) -> list[str]:
        """Names of those that were drawn from; all are put back."""
        found = []
        for (name, state, put, _), before in zip(self._all, self._before, strict=True):
            if repr(state()) != repr(before):
                found.append(name)
                put(before)
        return found

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """All of them at another place."""
        for _, _, _, seed in self._all:
            seed()
        try:
            yield
        finally:
            for (_, _, put, _), before in zip(self._all, self._before, strict=True):
                put(before)
