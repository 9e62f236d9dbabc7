"""Random numbers that are not torch's: what is drawn while a program is captured is a constant of it.

Whether a draw matters is seen by capturing again with other numbers. One other number does not show it: ``random() <
0.5`` falls on the same side every second time. So a Mersenne twister (Python's, numpy's global one) is put where all
that it gives is least, and where it is greatest; whatever is compared with it then falls on both sides. Other
generators are given several seeds, which show a draw that decides with a share of p but for (1 - p)^5.

A draw that decides nothing moves its generator in every step of eager, and what the loop draws next is another number.
So its words are counted, and a step moves the generator as far. Where they are not the same at every place (a draw that
is thrown away and repeated, a normal number that is kept for the next) the user is told.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np

from detente.bridge.live.sources import Sources

# Words of a twister's state behind which every one of its next 624 outputs is 0x40, and is 0xffffffff; not 0, or what
# asks for more than nothing (``random() > 0.0``) would be answered as it never is.
LEAST, GREATEST = 0x00000040, 0x12DD9BB3
SEEDS = (1, 2, 3, 4, 5)


PYTHONS, NUMPYS = "Python's random", "numpy.random"


class Generators:
    """Python's and numpy's own, and those that model and loss hold, as they are now."""

    def __init__(self, found: Sources) -> None:
        self._all: list[tuple[str, Callable[[], Any], Callable[[Any], None], list[Any]]] = [
            (PYTHONS, random.getstate, random.setstate, _of_python()),
            (NUMPYS, lambda: np.random.get_state(legacy=False), np.random.set_state, _of_numpy()),
        ]
        for name, own in found.generators:
            if isinstance(own, random.Random):
                self._all.append((name, own.getstate, own.setstate, _of_python()))
                continue
            bits = own.bit_generator if isinstance(own, np.random.Generator) else own._bit_generator

            def put(state: Any, bits: Any = bits) -> None:
                bits.state = state

            twister = isinstance(bits, np.random.MT19937)
            places = _of_numpy() if twister else [type(bits)(seed).state for seed in SEEDS]
            self._all.append((name, lambda bits=bits: bits.state, put, places))
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
    def elsewhere(self, turn: int) -> Iterator[None]:
        """All of them at another place; ``turn`` counts the ``places``."""
        for _, _, put, places in self._all:
            put(places[turn % len(places)])
        try:
            yield
        finally:
            for (_, _, put, _), before in zip(self._all, self._before, strict=True):
                put(before)

    def places(self, moved: list[str]) -> int:
        """How many places show whether those that ``moved`` matter."""
        return max(len(places) for name, _, _, places in self._all if name in moved)


# Those of the process.
_SHARED: dict[str, Any] = {
    name: draw.__self__ for name, draw in ((PYTHONS, random.random), (NUMPYS, np.random.rand))
}
Drawn = tuple[tuple[str, int | None], ...]
FARTHEST = 4096  # words of one forward that are counted


class Counted:
    """How many words the code that runs from here on draws, of each generator that is in reach."""

    def __init__(self, found: Sources) -> None:
        self._all = [*_SHARED.items(), *found.generators]
        self._before = [_state(own) for _, own in self._all]

    def words(self) -> Drawn:
        """(name, words) of those that moved; None for those that did so in another way than by whole words."""
        found = []
        for (name, own), before in zip(self._all, self._before, strict=True):
            now = _state(own)
            if not _equal(before, now):
                found.append((name, _words(own, before, now)))
        return tuple(found)


def common(one: Drawn, other: Drawn) -> Drawn:
    """What holds at both places."""
    at = dict(other)
    return tuple((name, words if at.get(name) == words else None) for name, words in one)


def movers(drawn: Drawn, found: Sources, times: int) -> list[Callable[[], Any]]:
    """Functions that move the generators so many words on, and that as often as ``times`` says."""
    known = _SHARED | dict(found.generators)
    return [partial(_move, known[name], words * times) for name, words in drawn if words and name in known]


def _move(own: Any, words: int) -> None:
    if isinstance(own, random.Random):
        own.getrandbits(32 * words)
    else:
        _bits(own).random_raw(words, output=False)


def _bits(own: Any) -> Any:
    """numpy's generator of words."""
    return own.bit_generator if isinstance(own, np.random.Generator) else own._bit_generator


def _state(own: Any) -> Any:
    if isinstance(own, random.Random):
        return None if isinstance(own, random.SystemRandom) else own.getstate()
    if isinstance(own, np.random.Generator):
        return own.bit_generator.state
    return own.get_state(legacy=False)  # with the normal number that is kept


def _words(own: Any, before: Any, after: Any) -> int | None:
    if isinstance(own, random.Random):
        made: Any = random.Random()
        made.setstate(before)
        step, state = partial(made.getrandbits, 32), made.getstate
    else:
        made = type(_bits(own))()
        made.state = {name: value for name, value in before.items() if "gauss" not in name}
        step, state = made.random_raw, lambda: {**before, **made.state}
    for words in range(1, FARTHEST + 1):
        step()
        if _equal(state(), after):
            return words
    return None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _equal(value, other[key]) for key, value in reversed(one.items())
        )
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)


def of_the_system() -> Iterator[AbstractContextManager[None]]:
    """Blocks in which ``random.SystemRandom``, which has no state, is given the least and the greatest, two numbers
    that are small among few (what asks for one below three asks again at a greater), and those of some seeds."""
    for first, last in ((0x00, 0x08), (0xFF, 0xFF), (0x40, 0x40), (0x80, 0x80)):
        yield _system_gives(lambda count, first=first, last=last: bytes((*(first,) * (count - 1), last)))
    for seed in SEEDS:
        yield _system_gives(random.Random(seed).randbytes)


@contextmanager
def _system_gives(bytes_of: Callable[[int], bytes]) -> Iterator[None]:
    """As often as a twister at its places does, or what asks until it likes a number asks for ever; in this thread, as
    others may make keys of them."""
    holder: Any = random
    plain, asked, mine = holder._urandom, 0, threading.get_ident()

    def gives(count: int) -> bytes:
        nonlocal asked
        if threading.get_ident() != mine:
            return plain(count)
        asked += 1
        return bytes_of(count) if asked <= 624 else plain(count)

    holder._urandom = gives
    try:
        yield
    finally:
        holder._urandom = plain


def _of_python() -> list[Any]:
    return [
        *((3, (word,) * 624 + (0,), None) for word in (LEAST, GREATEST)),
        random.Random(SEEDS[0]).getstate(),
    ]


def _of_numpy() -> list[Any]:
    return [
        *(
            {
                "bit_generator": "MT19937",
                "state": {"key": np.full(624, word, np.uint32), "pos": 0},
                "has_gauss": 0,
                "gauss": 0.0,
            }
            for word in (LEAST, GREATEST)
        ),
        np.random.RandomState(SEEDS[0]).get_state(legacy=False),
    ]
