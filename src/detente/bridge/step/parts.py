"""What forward writes to Python's values (``self.calls += 1``) in a step of several micro-batches.

A program is captured from one micro-batch, and eager runs forward once for each: the next finds what this one wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from detente.bridge.capture.captured import Captured, alike
from detente.bridge.capture.counters import Count
from detente.bridge.live.places import has, place
from detente.bridge.live.places import put as put_into
from detente.bridge.live.python import PLAIN
from detente.bridge.live.writes import Write
from detente.bridge.refusal import refuse


def of_all_parts(captured: Captured, again: Callable[[], Captured], parts: int) -> Captured:
    """``captured`` (of the first micro-batch) with what all ``parts`` write; ``again`` captures the next one, from what
    stands in the places then. One more capture shows what only counts, and what is written once; what moves in another
    way is followed through all of them. Raises Refused where a later one is another program."""
    total = {place(write.table, write.key): write for write in captured.writes}
    for part in range(1, parts):
        used: list[str] = []
        with _standing(total.values(), used):
            other = again()
        if not alike(captured, other, values=True):
            names = ", ".join(write.name for write in total.values())
            raise refuse(
                "held-tensor",
                f"forward writes {names}, and with it the next of {parts} micro-batches is another program",
                hint="write it in the loop, between two steps, or leave accumulate= out",
            )
        later = [write for write in other.writes if isinstance(write.value, PLAIN)]
        if not later:
            break
        counts = not used and all(write.by is not None for write in later)
        for write in later:
            before = total.get(place(write.table, write.key))
            total[place(write.table, write.key)] = _joined(before, write, parts - part if counts else 1)
        if counts:
            break
    return replace(captured, writes=tuple(total.values()))


def _joined(before: Write | None, write: Write, times: int) -> Write:
    """What was written ``before`` and then ``write``, the same so many ``times``."""
    if write.by is None:
        return write
    value = write.value + write.by * (times - 1)
    if before is None:
        return replace(write, value=value, by=write.by * times)
    # What was put where nothing was is a value, and no step from another.
    return replace(write, value=value, by=None if before.by is None else before.by + write.by * times)


@contextmanager
def _standing(writes: Iterable[Write], used: list[str]) -> Iterator[None]:
    """What was written stands in its places, for as long as the block takes; integers note in ``used`` whether anything
    but a sum is made of them."""
    plain = [write for write in writes if isinstance(write.value, PLAIN)]
    before: list[tuple[Any, Any, Any]] = []
    try:
        for write in plain:
            before.append(
                (write.table, write.key, [write.table[write.key]] if has(write.table, write.key) else [])
            )
            counts = write.by is not None
            put_into(write.table, write.key, Count.of(write.value, used) if counts else write.value)
        yield
    finally:
        for table, key, held in before:
            if held:
                put_into(table, key, held[0])
            elif has(table, key):
                del table[key]
