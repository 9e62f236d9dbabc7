"""Was torch's generator seeded between two steps? In eager the next step then draws from that seed (the same masks
again, after ``torch.manual_seed(0)`` before every step); a compiled step's numbers follow from its own seed and from
how many steps there were.

Seen is who calls ``torch.manual_seed`` or ``torch.seed``, since a state does not tell: no compiled step draws from
torch's generator, which is where it was, whether it was put there again or not. What was seeded for a while, and put
back (``fork_rng`` around a validation), is no matter.

Each step that is compiled without a seed of its own draws other numbers (eager's generator goes on, from one epoch's
step to the next one's and from a GAN's one step to its other): its seed follows from that of torch's generator and from
how many there were since that was seeded. The generator itself is not moved, or what the loop draws from it would be
another number than in eager.

How it can fail: a name that was bound to the function before the first ``detente.compile`` (``from torch import
manual_seed``), and a state that is set again and again, are not seen.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from functools import cache
from typing import Any

import torch

from detente.bridge.random.threefry import fold_in, key

_SEEDS = ("manual_seed", "seed")
_SETS = ("set_rng_state",)
_MOST = 16  # calls that are kept: of one validation, and not of a whole run
# Their numbers, and before each the generator's state and how many seeds were given.
_calls: deque[tuple[int, torch.Tensor, int]] = deque(maxlen=_MOST)
_given = 0  # seeds that steps were given since the generator was seeded


def next_seed() -> int:
    """The seed, a uint32, of a step that is compiled now without one: torch's own for the first. ``given`` says that it
    was."""
    _listen()
    seed = torch.initial_seed() % 2**32
    return fold_in(key(seed), _given)[1] if _given else seed


def given() -> None:
    """A step has the seed."""
    global _given  # noqa: PLW0603  (of the process, as torch's generator is)
    _given += 1


@cache
def _listen() -> None:
    for holder in (torch, torch.random):
        for name in (*_SEEDS, *_SETS):
            setattr(holder, name, _telling(getattr(holder, name), name in _SETS))


def _telling(function: Any, sets: bool) -> Any:
    @functools.wraps(function)
    def tells(*args: Any, **kwargs: Any) -> Any:
        global _given  # noqa: PLW0603
        before = torch.random.get_rng_state()
        found = function(*args, **kwargs)
        if sets:
            _put_back(torch.random.get_rng_state())
        else:
            _calls.append((_last() + 1, before, _given))
            _given = 0
        return found

    return tells


def _last() -> int:
    return _calls[-1][0] if _calls else 0


def _put_back(now: torch.Tensor) -> None:
    """What was seeded since the generator was here last is forgotten."""
    global _given
    place = next((i for i in reversed(range(len(_calls))) if torch.equal(_calls[i][1], now)), None)
    if place is not None:
        number, _given = _calls[place][0] - 1, _calls[place][2]
        while len(_calls) > place:
            _calls.pop()
        if not _calls:  # the count goes on from there
            _calls.append((number, now, _given))


class Seeded:
    """Of one step: it says so once."""

    def __init__(self) -> None:
        _listen()
        self._known: int | None = None  # the last call, as the step before left it
        self._told = False

    def stepped(self) -> None:
        self._known = _last()

    @property
    def moved(self) -> bool:
        """Asked when a step begins, and before anything of ours runs."""
        return not self._told and self._known not in (None, _last())

    def warn(self) -> None:
        self._told = True
        warnings.warn(
            "torch's generator was seeded between two steps: PyTorch would draw from that seed, and a compiled step "
            "draws what follows from the seed of detente.compile and from the number of the step; step.restart() "
            "begins those numbers anew",
            stacklevel=5,
        )
