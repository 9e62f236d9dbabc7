"""What stands in a capture for a float of Python's that is an input of the program: one that moved between steps.

A tensor in its place would be another thing than eager's float. It has a dtype, which a result without dimensions takes
(``y.mean() * t`` would be float64); ``float(t)``, ``math.cos(t)``, ``alpha=t`` and ``torch.full((2,), t)`` read its
value of now, and nobody hears of it; and ``isinstance(t, float)`` says no. So this is no tensor: it can be added,
multiplied, divided and raised, with numbers in float64 as Python does, with tensors in theirs as torch does. Whatever
else is asked of it has the value of now in its answer, and is refused: then each value is a program of its own.

A number of numpy's (``np.float64``, as ``np.exp`` makes them of a schedule) is one with more methods, each a question.

How it can fail: ``type(t) is float`` says no, and nothing hears that question; whoever's code may ask it is found by
the names that it loads (``asks_for_types``).
"""

from __future__ import annotations

import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch

from detente.bridge.refusal import Refused, refuse

FLOATS = (float, np.float64)  # which PyTorch takes for one and the same
Operation = Callable[[Any, Any], Any]
# What torch calls its functions of two tensors, and what they do; "r" for those whose operands change places.
_NAMES: dict[Operation, tuple[str, ...]] = {
    operator.add: ("add", "__add__", "__radd__"),
    operator.sub: ("sub", "subtract", "__sub__", "r rsub", "r __rsub__"),
    operator.mul: ("mul", "multiply", "__mul__", "__rmul__"),
    operator.truediv: (
        "div",
        "divide",
        "true_divide",
        "__truediv__",
        "__div__",
        "r __rtruediv__",
        "r __rdiv__",
    ),
    operator.pow: ("pow", "__pow__", "r __rpow__"),
}
_IN_PLACE: dict[Operation, tuple[str, ...]] = {
    operator.add: ("add_", "__iadd__"),
    operator.sub: ("sub_", "subtract_", "__isub__"),
    operator.mul: ("mul_", "multiply_", "__imul__"),
    operator.truediv: ("div_", "divide_", "true_divide_", "__itruediv__", "__idiv__"),
    operator.pow: ("pow_", "__ipow__"),
}
_OF_NUMPY: dict[str, Operation] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
}
_OF_TORCH = {n.removeprefix("r "): (o, n.startswith("r ")) for o, names in _NAMES.items() for n in names}
_WRITES = {name: operation for operation, names in _IN_PLACE.items() for name in names}


class _Questions:
    """``raised`` by what was asked while the user's code ``runs``: that may catch it, and go on with another value."""

    runs = False
    raised: Refused | None = None
    computed: ClassVar[list[weakref.ref[MovingNumber]]] = []  # of others, while the user's code ran
    numbers: tuple[MovingNumber, ...] = ()  # that stand in Python's places


@contextmanager
def no_questions(batch: Iterable[Any] = ()) -> Iterator[None]:
    """While the user's code runs in a capture, which is given those of a ``batch``. Raises Refused at the end where it
    asked for the value of one, and caught that; and where one is still held by anybody, who would be left with it: an
    attribute, a log, what is given back. (A cycle of references holds one longer than need be: then each value is a
    program.)"""
    before = _Questions.runs, _Questions.raised, _Questions.computed
    _Questions.runs, _Questions.raised, _Questions.computed = True, None, []
    own = [*_Questions.numbers, *batch]
    held = [sys.getrefcount(number) for number in own]
    try:
        yield
        if _Questions.raised is not None:
            raise _Questions.raised
        if (
            any(one() is not None for one in _Questions.computed)
            or [sys.getrefcount(number) for number in own] != held
        ):
            ask("who keeps it")
    finally:
        _Questions.runs, _Questions.raised, _Questions.computed = before


@contextmanager
def standing(numbers: Iterable[MovingNumber]) -> Iterator[None]:
    """While these stand in Python's places."""
    before, _Questions.numbers = _Questions.numbers, tuple(numbers)
    try:
        yield
    finally:
        _Questions.numbers = before


def all_among(inputs: Iterable[torch.Tensor]) -> None:
    """Raises Refused where one that stands in a place of Python's is none of the tensors that a program takes as
    inputs: it would be a constant there."""
    known = {id(tensor) for tensor in inputs}
    if any(id(number.tensor) not in known for number in _Questions.numbers):
        raise refuse(
            "control-flow", "a float of Python's that changes between steps is in no place that is seen"
        )


def asks_for_types(code: types.CodeType) -> bool:
    """Whether a function may ask ``type(t) is float``."""
    said = (*code.co_names, *code.co_consts)
    return "type" in code.co_names and ("float" in said or "float64" in said)


class StandIn:
    """What stands for a value of ``kind``, and raises where anything else is asked of it than its class says."""

    __slots__ = ("__weakref__",)
    kind: type

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """``isinstance`` says of it what it says of the value."""
        return self.kind

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") or not hasattr(self.kind, name):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        ask(name)

    def __eq__(self, other: object) -> bool:
        return ask_in_code("==", self is other)

    def __hash__(self) -> int:
        return ask_in_code("hash", id(self))


class MovingNumber(StandIn):
    """``tensor`` holds its value: 0-d, float64, an input of the program. ``kind`` is what it stands for: ``float``, or
    ``np.float64``."""

    __slots__ = ("kind", "tensor")

    def __init__(self, tensor: torch.Tensor, kind: type = float) -> None:
        self.tensor, self.kind = tensor, kind

    @classmethod
    def of(cls, tensor: torch.Tensor, kind: type = float) -> MovingNumber:
        """Computed of others."""
        made = cls(tensor, kind)
        _Questions.computed.append(weakref.ref(made))
        return made

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        ask("an array")

    def __array_ufunc__(self, ufunc: Any, how: str, *inputs: Any, **others: Any) -> Any:
        """numpy's functions of it. A number of numpy's that is added to it calls one as well."""
        operation = _OF_NUMPY.get(ufunc.__name__)
        if operation is None or how != "__call__" or others or len(inputs) != 2:
            ask(ufunc.__name__)
        found = _computed(operation, *inputs)
        return ask(ufunc.__name__) if found is NotImplemented else found

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        both = (*args, *(kwargs or {}).values())
        named = set(kwargs or ()) <= {"other", "exponent"}
        if len(both) == 2 and named and name in _OF_TORCH:
            operation, turned = _OF_TORCH[name]
            return _computed(operation, *(reversed(both) if turned else both))
        if len(both) == 2 and named and name in _WRITES and isinstance(both[0], torch.Tensor):
            into = both[0]
            if into.is_floating_point() or into.is_complex():
                return into.copy_(_computed(_WRITES[name], *both))
        ask(name)

    def __neg__(self) -> MovingNumber:
        return MovingNumber.of(-self.tensor, self.kind)

    def __pos__(self) -> MovingNumber:
        return self

    def __abs__(self) -> MovingNumber:
        return MovingNumber.of(abs(self.tensor), self.kind)

    def __repr__(self) -> str:
        return ask_in_code("repr", "a float that moves between steps")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ask_in_code("a copy", (MovingNumber, (self.tensor, self.kind)))


def stands(value: Any) -> bool:
    """Whether this stands for a float; ``isinstance`` says that it is one."""
    return type(value) is MovingNumber


def ask(what: str) -> NoReturn:
    """Raises Refused: this has the value of now in its answer."""
    refused = refuse(
        "control-flow",
        f"what is asked here ({what}) depends on a value of Python's that changes between steps",
    )
    _Questions.raised = _Questions.raised or refused
    raise refused


def ask_in_code(what: str, unless: Any) -> Any:
    """The same where code of the user's runs; ``unless`` for whoever asks beside it."""
    return ask(what) if _Questions.runs else unless


def _computed(operation: Operation, left: Any, right: Any) -> Any:
    if not all(
        stands(x) or type(x) in (int, bool, *FLOATS) or isinstance(x, torch.Tensor) for x in (left, right)
    ):
        return NotImplemented
    tensor = next((x for x in (left, right) if isinstance(x, torch.Tensor)), None)
    if tensor is None:
        kinds = [x.kind if stands(x) else type(x) for x in (left, right)]
        plain = (x.tensor if stands(x) else float(x) if type(x) is np.float64 else x for x in (left, right))
        return MovingNumber.of(operation(*plain), np.float64 if np.float64 in kinds else float)

    def of(value: Any) -> Any:
        if stands(value):
            return value.tensor
        # A number of Python's makes a float of an integer, and widens no tensor that has no dimensions either.
        whole = not (value.is_floating_point() or value.is_complex())
        value = value.to(torch.get_default_dtype()) if whole else value
        return value if value.ndim else value.reshape(1)

    found = operation(of(left), of(right))
    return found if tensor.ndim else found.reshape(())


def _method(operation: Operation, *, turned: bool) -> Any:
    def method(self: MovingNumber, other: Any) -> Any:
        return _computed(operation, *((other, self) if turned else (self, other)))

    return method


def _question(name: str) -> Any:
    def method(self: MovingNumber, *_: Any, **__: Any) -> NoReturn:
        ask(name)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _operation: Any = getattr(operator, _name)
    setattr(MovingNumber, f"__{_name}__", _method(_operation, turned=False))
    setattr(MovingNumber, f"__r{_name}__", _method(_operation, turned=True))
for _name in (
    *("float", "int", "bool", "index", "complex", "round", "trunc", "floor", "ceil", "format", "str"),
    *("lt", "le", "gt", "ge", "ne", "floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod"),
):
    setattr(MovingNumber, f"__{_name}__", _question(_name))
for _name in ("is_integer", "as_integer_ratio", "hex", "conjugate", "real", "imag"):
    setattr(MovingNumber, _name, property(_question(_name)))
