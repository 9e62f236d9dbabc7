"""``torch.manual_seed`` inside of a step: eager PyTorch then draws the same numbers in every step, and the program
would draw new ones, since its numbers follow from the number of the step alone.

While the user's code runs in a capture torch's functions about the seed meet a generator that refuses. To put a state
back from which nothing has been drawn since (``fork_rng`` around a part that draws nothing) changes nothing and is let
through. Another thread that seeds meanwhile meets the generator itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from detente.bridge.capture.draws import draws
from detente.bridge.capture.markers import capturing
from detente.bridge.capture.where import here
from detente.bridge.refusal import Refused, refuse

_HINT = "draw numbers that stay the same once, before compile, and register them with register_buffer"


def _seeded(what: str) -> Refused:
    return refuse("generator", f"the step {what}, and would draw the same numbers again", here(), _HINT)


def _drawn() -> int:
    """How many random calls the capture has seen so far."""
    mode = capturing()
    nodes = [] if mode is None else [n for n in mode.tracer.graph.nodes if n.op == "call_function"]
    return sum(draws(node.target, node.args, node.kwargs) for node in nodes)


class _Fixed:
    """Torch's default generator, which keeps its place in the thread that captures."""

    def __init__(self, own: Any) -> None:
        self._own, self._mine = own, threading.get_ident()
        self._given: list[tuple[torch.Tensor, int]] = []  # states, and what was drawn before each

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    @property
    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._mine

    def manual_seed(self, seed: int) -> Any:
        if self._elsewhere:
            return self._own.manual_seed(seed)
        raise _seeded("seeds torch's generator")

    def get_state(self) -> torch.Tensor:
        if self._elsewhere:
            return self._own.get_state()
        self._given.append((self._own.get_state(), _drawn()))
        return self._given[-1][0]

    def set_state(self, state: torch.Tensor) -> Any:
        if self._elsewhere:
            return self._own.set_state(state)
        if not any(state is given and count == _drawn() for given, count in self._given):
            raise _seeded("sets the state of torch's generator")
        return self._own


@contextmanager
def keep_seeds() -> Iterator[None]:
    """For the time of the user's own code in a capture; torch.export keeps the generator's state around it."""
    module: Any = torch.random
    own = module.default_generator
    module.default_generator = _Fixed(own)
    try:
        yield
    finally:
        module.default_generator = own
