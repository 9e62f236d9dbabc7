"""``self.calls += 1`` in forward: a number that only counts is no reason for another program.

It is taken for one where two captures from different numbers are one program, and nothing in Python did more with it
than add and subtract: a comparison (``if self.calls % 10 == 0``) decides, and then each value is captured by itself.
What C reads of it (a product with a tensor, an index) shows as a difference between the two programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Between the numbers of the two captures: no index, size or schedule takes both for the same.
FAR = 1_000_003


class Count(int):
    """An integer that notes whether anything but a sum was made of it."""

    used: list[str]

    @classmethod
    def of(cls, value: int, used: list[str]) -> Count:
        made = cls(value)
        made.used = used
        return made


def _sum(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def method(self: Count, other: Any) -> Any:
        if not isinstance(other, int):
            self.used.append(name)
            return plain(self, other)
        return Count.of(plain(self, other), self.used)

    return method


def _use(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def method(self: Count, *args: Any) -> Any:
        self.used.append(name)
        return plain(self, *args)

    return method


for _name in ("__add__", "__radd__", "__sub__"):
    setattr(Count, _name, _sum(_name))
for _name in (
    *(
        "__rsub__",
        "__mul__",
        "__rmul__",
        "__truediv__",
        "__rtruediv__",
        "__floordiv__",
        "__rfloordiv__",
        "__mod__",
    ),
    *(
        "__rmod__",
        "__divmod__",
        "__rdivmod__",
        "__pow__",
        "__rpow__",
        "__and__",
        "__rand__",
        "__or__",
        "__ror__",
    ),
    *(
        "__xor__",
        "__rxor__",
        "__lshift__",
        "__rlshift__",
        "__rshift__",
        "__rrshift__",
        "__neg__",
        "__pos__",
        "__abs__",
    ),
    *(
        "__invert__",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__round__",
        "__lt__",
        "__le__",
        "__gt__",
    ),
    *(
        "__ge__",
        "__eq__",
        "__ne__",
        "__hash__",
        "__repr__",
        "__str__",
        "__format__",
        "bit_length",
        "to_bytes",
    ),
):
    setattr(Count, _name, _use(_name))


def only_counts(
    capture: Callable[[], Any], alike: Callable[[Any, Any], bool], table: Any, key: Any, value: int
) -> bool:
    """Whether what stands in ``table[key]`` only counts. ``capture()`` makes the program (anything with ``writes``)
    from what stands there, and raises for what it cannot take; ``alike`` says whether two of them are one."""
    made = []
    for start in (value, value + FAR):
        used: list[str] = []
        table[key] = Count.of(start, used)
        try:
            made.append(capture())
        except Exception:
            return False
        finally:
            table[key] = value
        if used:
            return False
    one, other = made
    steps = [
        {
            (id(w.table), w.key): w.by if w.table is table and w.key == key else w.value
            for w in captured.writes
        }
        for captured in made
    ]
    return steps[0] == steps[1] and alike(one, other)
