"""Python's values that move between steps, and what a step makes of each.

A float that moves twice becomes an input of the program, an integer that only counts (``self.calls += 1``) is counted
on without asking, and of anything else every value is captured, with one warning of what that costs.
"""

from __future__ import annotations

import reprlib
import warnings
from typing import Any

import torch

from detente.bridge.live.around import Surroundings
from detente.bridge.live.moving_number import FLOATS
from detente.bridge.state.place import Placed
from detente.bridge.step.variants import Variants


class _Brief(reprlib.Repr):
    """A value in a part of a line. Of a tensor with more than one number, which may be a model's, what it is."""

    def repr_Tensor(self, tensor: torch.Tensor, level: int) -> str:  # noqa: N802, reprlib asks by it
        if tensor.numel() == 1:
            return repr(tensor.detach())
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"a tensor of {dtype}{list(tensor.shape)}"

    def repr_ndarray(self, array: Any, level: int) -> str:
        return f"an array of {array.dtype}{list(array.shape)}"


_BRIEF = _Brief()


class Moving:
    """``counted`` are the names of integers that only count."""

    def __init__(self, variants: Variants, around: Surroundings) -> None:
        self.variants, self.around = variants, around
        self.counted: set[str] = set()
        self._times: dict[str, int] = {}
        self._no_inputs: set[str] = set()  # numbers that decide: they cannot be inputs
        self._may_count: dict[str, str] = {}  # not tried yet -> what to say where it does more

    def moved(self, name: str, then: Any, now: Any) -> torch.Tensor | None:
        """A value is another one; returned is the input that it is, with its new value."""
        count = self._times[name] = self._times.get(name, 0) + 1
        numbers = self.variants.numbers
        if name in numbers and type(now) in FLOATS:
            return numbers[name].fill_(now)
        if name in numbers:
            self.no_input(name)
        elif name in self.counted and type(now) is int:
            return None
        elif name in self.counted:
            self._decides(name)
        elif count == 2:
            self._second(name, then, now)
        return None

    def _second(self, name: str, then: Any, now: Any) -> None:
        said = f"{name} changes between steps ({_BRIEF.repr(then)} -> {_BRIEF.repr(now)})"
        if type(then) in FLOATS and type(now) in FLOATS and name not in self._no_inputs:
            self.variants.numbers[name] = torch.tensor(now, dtype=torch.float64)
            self.around.inputs.add(name)
            self.variants.ran = self.around.ran
        elif type(then) is int and type(now) is int and name not in self._no_inputs:
            self._may_count[name] = said
        else:
            self.warn(said)

    def before_capture(self, placed: Placed) -> None:
        """A program for another batch or mode is about to be captured: does in it, too, each only count?"""
        for name in sorted(self.counted):
            if not self.variants.only_counts(name, placed, self.around.ran):
                self._decides(name)

    def before_step(self, placed: Placed) -> None:
        """Tries what may only count."""
        while self._may_count:
            name, said = self._may_count.popitem()
            if self.variants.only_counts(name, placed, self.around.ran):
                self.counted.add(name)
                self.around.inputs.add(name)
            else:
                self._no_inputs.add(name)
                self.warn(said)

    def no_input(self, name: str) -> None:
        """A number that forward does not only compute with: each value of it is a program."""
        del self.variants.numbers[name]
        self.around.inputs.discard(name)
        self._no_inputs.add(name)

    def _decides(self, name: str) -> None:
        self.counted.discard(name)
        self.around.inputs.discard(name)
        self._no_inputs.add(name)
        self.warn(f"{name} changes between steps and does more than count")

    def warn(self, what: str) -> None:
        took = sum([*self.variants.made.values()][-1].seconds.values()) if self.variants.made else 0.0
        warnings.warn(
            f"{what}: every new value is captured and compiled again, about {took:.1f} s each; a tensor in the batch, "
            "or a buffer, is an input instead",
            stacklevel=6,
        )
