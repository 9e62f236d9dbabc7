"""Modes of the user's around a step (``TorchFunctionMode``, ``TorchDispatchMode``): an emulated precision, fake
quantisation, a counter. Eager computes in them; a program has in it what was on when it was captured.

A function mode that is on around ``detente.compile`` is part of what is captured, and the certificate is made inside of
it. So a step must be called inside of the modes that it was compiled in, as they were then, and no others. A dispatch
mode runs below operators, where a capture computes with tensors that have no values: refused. torch's own modes (a
default device) change no value, and are let through; its FLOP counter hooks every module, and would count nothing.

How it can fail: a mode whose attribute is an object that moves inside, or whose code reads a global that moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from detente.bridge.live.python import PLAIN
from detente.bridge.private import users_modes
from detente.bridge.refusal import Refused, refuse

_TORCHS = frozenset({"inner"})  # what torch itself puts into one


class Modes:
    """Those that a step was compiled in. Raises Refused (``around``) for a dispatch mode."""

    def __init__(self) -> None:
        self.held = _functions(users_modes())
        self._said = [_says(mode) for mode in self.held]

    def check(self) -> None:
        """Raises Refused where others are on now, or the same ones say something else."""
        now = users_modes()
        if not now and not self.held:
            return
        now = _functions(now)
        said = [_says(mode) for mode in now]
        if said != self._said:
            raise self._moved(now, said)

    def _moved(self, now: Sequence[Any], said: Sequence[Any]) -> Refused:
        then = [kind for kind, _ in self._said]
        if [kind for kind, _ in said] == then:
            kind, name, was, to = next(
                (kind, name, was.get(name), to.get(name))
                for (kind, was), (_, to) in zip(self._said, said, strict=True)
                for name in {**was, **to}
                if was.get(name) != to.get(name)
            )
            what = (
                f"{name} of {_called([kind])}, a mode that is on around the call, is {to} now, and was {was}"
            )
            return refuse(
                "around", f"{what}, when the step was compiled: its programs have that in them", hint=_ANEW
            )
        if not now:
            what = f"{_called(then)} was on around detente.compile, and is not on around this call"
            return refuse("around", f"{what}: the step's programs have it in them", hint=_INSIDE)
        there = f"{_called(then)} was" if then else "no mode was"
        what = f"{_called([kind for kind, _ in said])} is on around the call of the step, and {there} around"
        return refuse("around", f"{what} detente.compile: eager would compute in it", hint=_LOSS)


_ANEW = (
    "compile another step where it is so, or open a mode inside of the loss function that reads it from there"
)
_INSIDE = "call the step inside of it, or compile it outside"
_LOSS = "open it inside of the loss function, where it is part of the program, or compile another step inside of it"


def _functions(modes: Sequence[Any]) -> list[TorchFunctionMode]:
    for mode in modes:
        if not isinstance(mode, TorchFunctionMode):
            raise refuse(
                "around",
                f"{_called([type(mode)])}, a mode below torch's operators, is on around the call: a step runs none of "
                "them, and eager would compute in it",
                hint="compile and call the step outside of it; write what it does inside of forward or the loss",
            )
    return list(modes)


def _says(mode: Any) -> tuple[type, dict[str, str]]:
    """Its class, and its attributes: values as they read, other objects by which they are."""
    own = {name: value for name, value in getattr(mode, "__dict__", {}).items() if name not in _TORCHS}
    return type(mode), {n: repr(v) if isinstance(v, PLAIN) else f"object {id(v)}" for n, v in own.items()}


def _called(kinds: Sequence[type]) -> str:
    return ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
