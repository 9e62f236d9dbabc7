"""Generators of Python's and numpy's that forward moves in eager without need (a layer drop of 0.0): a step moves
them as far, so that what the loop draws from them (an order, an augmentation) is what it draws in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from detente.bridge.capture.captured import Captured
from detente.bridge.capture.generators import movers
from detente.bridge.live.walk import sources


class Draws:
    """Of one step, whose batch is ``parts`` micro-batches."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any], parts: int) -> None:
        self.model, self.loss, self.parts = model, loss, parts
        # By the id of a captured program: itself, so that the id stays its own, and what moves the generators.
        self._of: dict[int, tuple[Captured, list[Callable[[], Any]]]] = {}

    def move(self, captured: Captured) -> None:
        """Behind a step of this program."""
        if not captured.drawn:
            return
        if id(captured) not in self._of:
            found = sources(self.model, self.loss)
            self._of[id(captured)] = captured, movers(captured.drawn, found, self.parts)
        for move in self._of[id(captured)][1]:
            move()
