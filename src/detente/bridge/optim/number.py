"""Symbolic Python numbers: how an optimizer's host arithmetic (``1 - beta2 ** step``) enters the graph.

``torch.optim`` keeps learning rates, betas and step counts as Python floats and does their arithmetic in
double on the host; only the finished scalars reach a kernel. A trace that turned them into float32 tensors
would lose that (``1 - 0.999 ** t`` in float32 is wrong by 6e-5). So the tracer hands the optimizer
``torch.SymFloat`` objects whose node is a ``Number``: arithmetic on them is recorded as 0-d float64 nodes,
and C++ carries them untouched to the operator that uses them.

The methods below are the part of torch's SymNode protocol that ``torch.SymFloat`` and ``torch.SymBool`` call
(tested with torch 2.13, written for 2.9 on; ``tests/bridge/optim/test_number.py`` is its self-test).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from detente.bridge.graph import Ref

Values = Mapping[str, float]  # hyper-parameter name -> its value now


class Recorder(Protocol):
    """Where numbers are written down: the tracer."""

    def record_number(self, op: str, *args: Any, kind: str = "float64") -> Ref:
        """Append a 0-d node and return its value."""
        ...

    def decide(self, test: Number) -> bool:
        """Which way a Python ``if`` on this bool goes in this trace."""
        ...

    def fix(self, number: Number) -> float:
        """The value of a number that Python needs as a float here (``math.log(lr)``)."""
        ...


# op -> the same on Python numbers, for values that depend on hyper-parameters alone
PYTHON: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "neg": lambda a: -a,
    "max": max,
    "min": min,
    "sqrt": lambda a: a**0.5,
    "exp": lambda a: torch.tensor(a, dtype=torch.float64).exp().item(),
    "log": lambda a: torch.tensor(a, dtype=torch.float64).log().item(),
    "gt": lambda a, b: a > b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "not": lambda a: not a,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}


@dataclass(frozen=True)
class Number:
    """One symbolic float or bool. ``value`` is a ``Ref`` into the graph under construction, or a literal.

    ``now`` computes it from hyper-parameters and is None when it depends on a step count or a tensor.
    """

    recorder: Recorder
    value: Ref | float | bool
    now: Callable[[Values], Any] | None
    boolean: bool = False

    # what SymFloat and C++ ask
    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return not self.boolean

    def is_bool(self) -> bool:
        return self.boolean

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return False

    expr = None  # and nothing can be simplified
    _hint = None  # what statically_known_true reads: nothing is known, and nothing is guarded on

    def _nothing(self) -> None:
        return None

    maybe_as_float = maybe_as_int = maybe_as_bool = _nothing
    constant_float = constant_int = constant_bool = nested_int = _nothing

    def wrap_float(self, value: float) -> Number:
        return Number(self.recorder, value, lambda _: value)

    wrap_int = wrap_float

    def wrap_bool(self, value: bool) -> Number:
        return Number(self.recorder, value, lambda _: value, boolean=True)

    def sym_float(self) -> Number:
        return self

    def str(self) -> str:
        return f"Number({self.value})"

    __str__ = _graph_repr = str

    def guard_float(self, file: str = "", line: int = 0) -> float:
        return self.recorder.fix(self)

    def guard_int(self, file: str = "", line: int = 0) -> int:
        return int(self.recorder.fix(self))

    def _whole(self, how: Callable[[float], int]) -> Number:
        value = how(self.recorder.fix(self))
        return Whole(self.recorder, value, lambda _: value)

    def floor(self) -> Number:
        return self._whole(math.floor)

    def ceil(self) -> Number:
        return self._whole(math.ceil)

    def trunc(self) -> Number:
        return self._whole(math.trunc)

    def round(self, digits: int | None = None) -> Number:
        if digits is not None:
            return self.wrap_float(round(self.recorder.fix(self), digits))
        return self._whole(round)

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        return self.recorder.decide(self)

    def bool_(self) -> bool:
        return self.recorder.decide(self)

    def expect_true(self, file: str = "", line: int = 0) -> bool:
        # torch's own sanity checks (a base of ``**`` is not negative): the run-time value shows it, as in torch
        return True

    def guard_or_false(self, file: str = "", line: int = 0) -> bool:
        return self.recorder.decide(self)

    guard_or_true = guard_size_oblivious = guard_or_false

    def _is_zero(self, number: Number) -> bool:
        """Whether a number that Python knows is 0 now, which the trace then relies on."""
        if not isinstance(number.value, Ref):
            return number.value == 0
        return self.recorder.decide(number.apply("eq", self.wrap_float(0.0)))

    # arithmetic
    def apply(self, op: str, *others: Number) -> Number:
        """This number and the others through ``op`` (a key of ``PYTHON``), recorded."""
        if op in DIVISIONS and others[0].now is not None and self._is_zero(others[0]):
            raise ZeroDivisionError(
                "float division by zero"
            )  # which a step may catch (schedule-free, at rate 0)
        operands = (self, *others)
        boolean = op in COMPARISONS or op in LOGIC
        ref = self.recorder.record_number(
            f"number.{op}", *(n.value for n in operands), kind="bool" if boolean else "float64"
        )
        parts = [n.now for n in operands]
        now: Callable[[Values], Any] | None = None
        if all(part is not None for part in parts):
            function = PYTHON[op]

            def compute(values: Values) -> Any:
                return function(*(part(values) for part in parts if part is not None))

            now = compute

        return Number(self.recorder, ref, now, boolean)


@dataclass(frozen=True)
class Whole(Number):
    """The int that ``int(number)`` or ``math.ceil(number)`` gives: a constant of this trace, which ``fix`` guards."""

    def is_int(self) -> bool:
        return True

    def is_float(self) -> bool:
        return False

    def int_(self) -> int:
        return int(self.value)  # type: ignore[arg-type]

    def guard_int(self, file: str = "", line: int = 0) -> int:
        return self.int_()

    def sym_float(self) -> Number:
        return self.wrap_float(float(self.int_()))


COMPARISONS = ("gt", "lt", "ge", "le", "eq", "ne")
DIVISIONS = ("div", "floordiv", "mod")
LOGIC = ("not", "and", "or")

# SymNode's name -> ours
_METHODS = {
    **{name: name for name in ("add", "sub", "mul", "pow", "mod", "neg", *COMPARISONS)},
    "truediv": "div",
    "float_truediv": "div",
    "int_truediv": "div",
    "floordiv": "floordiv",
    "int_floordiv": "floordiv",
    "float_pow": "pow",
    "pow_by_natural": "pow",
    "sym_max": "max",
    "sym_min": "min",
    "sym_sqrt": "sqrt",
    "sym_exp": "exp",
    "sym_log": "log",
    "sym_not": "not",
    "and_": "and",
    "or_": "or",
    "sym_and": "and",
    "sym_or": "or",
}


def _method(op: str) -> Callable[..., Number]:
    return lambda self, *others: self.apply(op, *others)


for _name, _op in _METHODS.items():
    setattr(Number, _name, _method(_op))


def is_number(value: Any) -> bool:
    """Whether this is one of ours, as a bare ``SymFloat`` or as the wrapped number of a tensor argument."""
    return isinstance(value, torch.SymFloat) and isinstance(value.node, Number)


def number_of(value: Any) -> Number | None:
    """The ``Number`` behind an operator's argument, or None.

    Where ATen wants a tensor (``param * lr``), the argument parser makes a 0-d NaN tensor and hangs the
    SymFloat on it.
    """
    if is_number(value):
        return value.node
    if isinstance(value, torch.Tensor):
        wrapped = getattr(value, "_wrapped_number", None)
        if wrapped is not None and is_number(wrapped):
            return wrapped.node
    return None


def lifted(function: Callable[..., Any], op: str) -> Callable[..., Any]:
    """A builtin (``max``) that records where an argument is a ``Number`` or a traced tensor; itself otherwise."""

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = any(_traced(arg) for arg in args)
        if kwargs or not (tensors or any(is_number(arg) for arg in args)):
            return function(*args, **kwargs)
        if tensors and op in ("max", "min"):
            return function(*args) if len(args) < 2 else _extreme(args, op)
        args = tuple(arg.item() if _traced(arg) else arg for arg in args)
        recorder = next(arg.node for arg in args if is_number(arg))
        nodes = [arg.node if is_number(arg) else recorder.wrap_float(arg) for arg in args]
        result = nodes[0]
        if len(nodes) == 1:
            return torch.SymFloat(result.apply(op))
        for other in nodes[1:]:
            result = result.apply(op, other)
        return torch.SymFloat(result)

    return call


def _traced(value: Any) -> bool:
    """A tensor of a trace."""
    return isinstance(value, torch.Tensor) and value.is_meta


def _extreme(args: tuple[Any, ...], op: str) -> Any:
    """Python's ``max`` of tensors of one element and numbers: the later one only where it is truly more."""
    found = args[0]
    for other in args[1:]:
        like = next(value for value in (found, other) if _traced(value))
        one, two = (v if isinstance(v, torch.Tensor) else torch.full_like(like, v) for v in (found, other))
        found = torch.where(two > one if op == "max" else two < one, two, one)
    return found
