"""``functools.lru_cache``: a table of positions or a mask that is computed once and kept, as in eager.

What such a cache holds is in no table of Python's, so nothing that a capture leaves there can be taken back: a tensor
of the trace would be what the next eager call is given. While forward runs, a function that stands in for each one in
reach calls it outside of the trace: it computes real values, or finds those of an earlier call, and the program reads
them as the constants that they are. Where an argument is a tensor, eager finds nothing of an earlier step: what is
cached runs as part of the program, and nothing is kept of it.

How it can fail: a cached function that is found in no place that is looked at (in a tuple, in a library's code) runs as
part of the program, and what it kept is dropped; a random number that it draws once in eager is drawn anew then.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from detente.bridge.capture.where import code_place
from detente.bridge.live.places import put
from detente.bridge.live.python import PLAIN
from detente.bridge.live.sources import Sources, found_in
from detente.bridge.private import FakeTensor, outside_of_modes, without_functions
from detente.bridge.refusal import refuse
from detente.collector import all_in_sight

CACHED: Any = type(functools.lru_cache(lambda: None))
_OF_A_TRACE = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
# Whose caches hold what a trace made because that is their business.
_THEIRS = ("torch", "torchgen", "sympy", "jax", "detente", "numpy")


class Caches:
    """Every cached function that model and loss reach, with its places, and those of the process that a capture may
    leave something in."""

    def __init__(self, before: Sources) -> None:
        self._slots = [(t, k, v) for t, k, v, _ in before.slots if _cached(v) is not None]
        self._cells = [(c, v) for c, v, _ in before.cells if _cached(v) is not None]
        # Each refers to its type. A list of all objects of a process, to look through, takes twice as long and more.
        with all_in_sight():
            found = gc.get_referrers(CACHED)
        self._all = [one for one in found if type(one) is CACHED and _may_be_filled(one)]
        self._misses = list(map(_misses, self._all))

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """While forward runs: others in their places."""
        made: dict[int, Any] = {}
        try:
            for table, key, held in self._slots:
                put(table, key, _in_place_of(held, made))
            for cell, held in self._cells:
                cell.cell_contents = _in_place_of(held, made)
            yield
        finally:
            for table, key, held in self._slots:
                put(table, key, held)
            for cell, held in self._cells:
                cell.cell_contents = held

    def forget(self) -> None:
        """Behind a trace: what holds tensors of it holds nothing."""
        now = list(map(_misses, self._all))
        for one, misses, before in zip(self._all, now, self._misses, strict=True):
            if misses != before and _holds_trace(one):
                one.cache_clear()
        self._misses = now


def _cached(value: Any) -> Any:
    """The cached function itself, of one in a class, too; None for anything else."""
    inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    return inner if isinstance(inner, CACHED) else None


def _may_be_filled(one: Any) -> bool:
    top = (getattr(one, "__module__", None) or "").partition(".")[0]
    return top not in _THEIRS and top not in sys.stdlib_module_names


def _misses(one: Any) -> int:
    return one.cache_info().misses


def _in_place_of(held: Any, made: dict[int, Any]) -> Any:
    cached = _cached(held)
    if id(cached) not in made:
        made[id(cached)] = _outside(cached)
    return made[id(cached)] if held is cached else type(held)(made[id(cached)])


def _outside(cached: Any) -> Callable[..., Any]:
    """Calls the cached function where no trace is."""

    @functools.wraps(cached)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if next(found_in(given, (torch.Tensor, *_OF_A_TRACE)), None) is not None:
            return cached.__wrapped__(*args, **kwargs)
        try:
            with outside_of_modes(), without_functions():
                found = cached(*args, **kwargs)
        except Exception:  # the user's own is raised again; what cannot be run here is part of the program
            return cached.__wrapped__(*args, **kwargs)
        if next(found_in(found, _OF_A_TRACE), None) is not None:
            cached.cache_clear()
            raise refuse(
                "held-tensor",
                f"{cached.__qualname__} keeps what follows from weights or a batch in functools.lru_cache, where the "
                "next step finds that of this one",
                code_place(cached.__wrapped__),
                "compute it anew in every step",
            )
        return found

    call.cache_info, call.cache_clear = cached.cache_info, cached.cache_clear  # type: ignore[attr-defined]
    call.cache_parameters = cached.cache_parameters  # type: ignore[attr-defined]
    return call


def _holds_trace(one: Any) -> bool:
    """What is kept is asked of the collector: results lie in the table of one without a bound, beside it else."""
    for held in gc.get_referents(one):
        if held is vars(one) or isinstance(held, type) or held is one.__wrapped__:
            continue
        for value in held.values() if type(held) is dict else (held,):
            if not isinstance(value, PLAIN) and next(found_in(value, _OF_A_TRACE), None) is not None:
                return True
    return False
