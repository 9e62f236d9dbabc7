"""What stands in a capture for a plain value of the batch that was another one in the step before, and of which nobody
may have asked anything: the file that a picture is of, the number of a sample.

A program of whose loss nobody has asked for it is the program of every other value. So this raises at whatever is asked
(``_ask``), as a float that moves does at what is not computed with it (``moving_number.py``), and whoever catches that,
or keeps the thing, is found at the end (``no_questions``).

How it can fail: ``type(x) is str`` says no, and nothing hears that question; whoever's code may ask it is found by the
names that it loads (``asks_what_kind``). What C code asks of an object's own layout, and takes "no" for an answer.
"""

from __future__ import annotations

import types
from typing import Any, NoReturn

from detente.bridge.live.moving_number import StandIn, ask, ask_in_code

KINDS = (str, int, bytes)  # ``x is None`` and ``x is True`` nobody hears


class Unasked(StandIn):
    """``value`` is what it stands for, of one of the ``KINDS``."""

    __slots__ = ("kind", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.kind = value, type(value)

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        ask(getattr(func, "__name__", "torch"))

    def __repr__(self) -> str:
        return ask_in_code("repr", "a plain value of the batch that changes between steps")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ask_in_code("a copy", (Unasked, (self.value,)))


def _question(name: str) -> Any:
    def method(self: Unasked, *_: Any, **__: Any) -> NoReturn:
        ask(name)

    return method


for _name in (
    *(
        "bool",
        "int",
        "float",
        "complex",
        "index",
        "str",
        "format",
        "bytes",
        "fspath",
        "round",
        "trunc",
        "floor",
        "ceil",
    ),
    *(
        "len",
        "iter",
        "contains",
        "getitem",
        "lt",
        "le",
        "gt",
        "ge",
        "ne",
        "neg",
        "pos",
        "abs",
        "invert",
        "reversed",
    ),
    *("array", "array_ufunc", "divmod", "rdivmod", "call"),
    *(
        f"{side}{operation}"
        for side in ("", "r")
        for operation in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
            *("and", "or", "xor", "lshift", "rshift"),
        )
    ),
):
    setattr(Unasked, f"__{_name}__", _question(_name))


def unasked(value: Any) -> bool:
    """Whether this is one; ``isinstance`` says that it is what it stands for."""
    return type(value) is Unasked


def asks_what_kind(code: types.CodeType) -> bool:
    """Whether a function may ask ``type(x) is str``."""
    said = {*code.co_names, *code.co_consts} if "type" in code.co_names else set()
    return not said.isdisjoint(kind.__name__ for kind in KINDS)
