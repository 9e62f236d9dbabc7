"""The self-test of the adapter around torch's SymFloat protocol, on the installed torch."""

import math
import operator

import pytest
import torch

from detente.bridge.graph import Ref
from detente.bridge.optim.number import PYTHON, Number, is_number, lifted, number_of


class Tape:
    """Records what numbers do; decisions and fixed values come from hyper-parameters."""

    def __init__(self, **values):
        self.values, self.ops, self.decided, self.fixed = values, [], [], []

    def record_number(self, op, *args, kind="float64"):
        self.ops.append((op, args, kind))
        return Ref(100 + len(self.ops))

    def decide(self, test):
        self.decided.append(test)
        return bool(test.now(self.values))

    def fix(self, number):
        self.fixed.append(number)
        return number.now(self.values)

    def number(self, name):
        return torch.SymFloat(Number(self, Ref(len(name)), lambda values: values[name]))


BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "gt": operator.gt,
    "lt": operator.lt,
    "ge": operator.ge,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("side", ["both", "left", "right"])
def test_arithmetic_is_recorded_and_has_pythons_value(name, side):
    tape = Tape(a=0.75, b=2.5)
    a, b = tape.number("a"), tape.number("b")
    left, right = (a, b) if side == "both" else (a, 2.5) if side == "left" else (0.75, b)
    result = BINARY[name](left, right)
    node = result.node
    assert isinstance(node, Number)
    value = node.now(tape.values)
    assert value == BINARY[name](0.75, 2.5)
    assert tape.ops[-1][0].startswith("number.")


def test_negation_roots_and_extremes():
    tape = Tape(a=0.75, b=2.5)
    a, b = tape.number("a"), tape.number("b")
    assert (-a).node.now(tape.values) == -0.75
    assert lifted(max, "max")(a, b, 1.0).node.now(tape.values) == 2.5
    assert lifted(min, "min")(2.0, a).node.now(tape.values) == 0.75
    assert lifted(max, "max")(1, 2) == 2  # plain numbers stay plain
    assert torch.sym_sqrt(b).node.now(tape.values) == pytest.approx(2.5**0.5)
    assert tape.fixed == []


def test_an_if_asks_for_a_decision():
    tape = Tape(decay=0.0)
    decay = tape.number("decay")
    taken = "yes" if decay != 0 else "no"
    assert taken == "no"
    assert len(tape.decided) == 1


def test_a_number_reaches_an_operator_as_scalar_and_as_tensor():
    """C++ carries the SymFloat through: as a Scalar argument it arrives whole, as a tensor it hangs on a 0-d one."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = {}

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            flat = [*args, *(kwargs or {}).values()]
            seen[str(func)] = [n for a in flat if (n := number_of(a)) is not None]
            return torch.empty(3, device="meta")

    tape = Tape(lr=0.1)
    lr, x = tape.number("lr"), torch.empty(3, device="meta")
    with Look():
        torch.add(x, x, alpha=lr)
        torch.mul(x, lr)
        torch.addcdiv(x, x, x, value=-lr)
    assert [len(seen[op]) for op in ("aten.add.Tensor", "aten.mul.Tensor", "aten.addcdiv.default")] == [
        1,
        1,
        1,
    ]
    assert seen["aten.addcdiv.default"][0].now(tape.values) == -0.1
    assert is_number(lr)
    assert not is_number(0.1)


def test_the_value_itself_is_fixed_only_when_python_needs_it():
    tape = Tape(lr=0.25)
    assert float(tape.number("lr")) == 0.25
    assert len(tape.fixed) == 1


def test_every_recorded_operator_has_a_row_in_the_table():
    import detente.bridge.optim.symbolic  # noqa: F401
    from detente.bridge.lower.table import TABLE

    assert {f"number.{op}" for op in PYTHON} <= set(TABLE)


@pytest.mark.parametrize("value", [2.5, -2.5, 3.0, -0.5])
def test_whole_numbers_are_pythons(value):
    tape = Tape(a=value)
    a = tape.number("a")
    assert (int(a), operator.index(math.floor(a)), operator.index(math.ceil(a))) == (
        int(value),
        math.floor(value),
        math.ceil(value),
    )
    assert operator.index(round(a)) == round(value)
    assert float(a // 2.0) == value // 2.0
    assert (int(a) * 0.5, list(range(abs(int(a))))) == (int(value) * 0.5, list(range(abs(int(value)))))
