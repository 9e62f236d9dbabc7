"""A program's file is named by everything that a capture would read: another value anywhere is another name, and the
same values, built again, are the same one. A name that leaves something out gives the old program in silence, in the
next process and, where a value changes between steps, in this one."""

from __future__ import annotations

import contextvars
import enum
import functools
import os
import subprocess
import sys
import types
import weakref
from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import nn

import detente
from detente.bridge.cache.describe import Writer
from detente.bridge.cache.entry import _environment
from detente.bridge.cache.surroundings import lowerings, patched
from detente.bridge.lower.table import TABLE

SAYS = contextvars.ContextVar("SAYS", default=0.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


def weigh(loss):
    return loss * weigh.factor


def in_a_class(value):
    class Config:
        table = {"s": value}  # noqa: RUF012

    return lambda m, b: m(b).sum() * Config.table["s"]


def in_a_class_inside(value):
    class Config:
        class Inner:
            s = value

    return lambda m, b: m(b).sum() * Config.Inner.s


def in_a_partial_method(value):
    class Other(Net):
        def scaled(self, x, by):
            return self.linear(x) * by

        forward = functools.partialmethod(scaled, by=value)

    return Other()


def in_an_attribute_of_a_function(value):
    weigh.factor = value
    return lambda m, b: weigh(m(b).sum())


def in_a_teacher(value):
    teacher = Net()
    teacher.s = value
    return lambda m, b: (m(b) - teacher(b) * teacher.s).sum()


def in_an_enum(value):
    kind = enum.Enum("Kind", {"A": value})
    return lambda m, b: m(b).sum() * kind.A.value


def in_a_member_of_an_enum(value):
    member = enum.Enum("Kind", {"A": value}).A
    return lambda m, b: m(b).sum() * member.value


def behind_a_weak_reference(value):
    class Held:
        pass

    KEPT.append(Held())
    KEPT[-1].s = value
    there = weakref.ref(KEPT[-1])
    return lambda m, b: m(b).sum() * there().s


def behind_a_function_in_c(value):
    get = {"s": value}.get
    return lambda m, b: m(b).sum() * get("s")


def in_a_context(value):
    SAYS.set(value)
    return lambda m, b: m(b).sum() * SAYS.get()


def in_a_dictionary_of_the_users(value):
    class Table(dict):
        pass

    table = Table()
    table.s = value
    return lambda m, b: m(b).sum() * table.s


def in_a_default_of_a_dictionary(value):
    table = defaultdict(lambda: value)
    return lambda m, b: m(b).sum() * table["s"]


def in_slots_of_a_parent(value):
    class Parent:
        __slots__ = ("s",)

    class Child(Parent):
        pass

    held = Child()
    held.s = value
    return lambda m, b: m(b).sum() * held.s


def beside_an_array(value):
    class Array(np.ndarray):
        pass

    held = np.ones(3).view(Array)
    held.s = value
    return lambda m, b: m(b).sum() * held.s


def in_an_array_of_objects(value):
    held = np.array([types.SimpleNamespace(s=value)], dtype=object)
    return lambda m, b: m(b).sum() * held[0].s


def in_a_module_made_by_hand(value):
    held = types.ModuleType("held_by_hand")
    held.s = value
    return lambda m, b: m(b).sum() * held.s


def in_a_module_of_an_attribute(value):
    model = Net()
    model.held = types.ModuleType("held_by_hand")
    model.held.s = value
    return model


def in_a_module_imported_inside(value):
    sys.modules["imported_inside"] = types.ModuleType("imported_inside")
    sys.modules["imported_inside"].s = value

    def loss(m, b):
        from imported_inside import s

        return m(b).sum() * s

    return loss


def in_a_metaclass(value):
    class Meta(type):
        s = value

    class Config(metaclass=Meta):
        pass

    return lambda m, b: m(b).sum() * Config.s


def in_a_class_that_was_typed_in(value):
    there = {"Net": Net, "__name__": "typed_in"}
    exec(f"class Other(Net):\n    def forward(self, x): return self.linear(x) * {value}\n", there)
    return there["Other"]()


def in_a_graph_of_fx(value):
    class Other(Net):
        def forward(self, x):
            return self.linear(x) * value

    return torch.fx.symbolic_trace(Other())


KEPT: list[object] = []
PLACES = (
    in_a_class, in_a_class_inside, in_a_partial_method, in_an_attribute_of_a_function, in_a_teacher, in_an_enum,
    in_a_member_of_an_enum, behind_a_weak_reference, behind_a_function_in_c, in_a_context, in_a_dictionary_of_the_users,
    in_a_default_of_a_dictionary, in_slots_of_a_parent, beside_an_array, in_an_array_of_objects,
    in_a_module_made_by_hand, in_a_module_of_an_attribute, in_a_module_imported_inside, in_a_metaclass,
    in_a_class_that_was_typed_in, in_a_graph_of_fx,
)  # fmt: skip


def described(made):
    model = made if isinstance(made, nn.Module) else Net()
    writer = Writer(model)
    return writer.module(model), writer.value(made)


@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.__name__)
def test_another_value_is_another_name(place):
    first = described(place(2.0))
    assert described(place(2.0)) == first
    assert described(place(3.0)) != first


def test_a_changed_module_behind_a_module_is_another_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "outer_of_two.py").write_text("import inner_of_two\ndef f(x): return inner_of_two.g(x)\n")
    found = []
    for factor in (2, 3):
        (tmp_path / "inner_of_two.py").write_text(f"def g(x): return x * {factor}\n")
        for name in ("inner_of_two", "outer_of_two"):
            sys.modules.pop(name, None)
        outer = __import__("outer_of_two")
        found.append(described(lambda m, b: outer.f(m(b).sum())))  # noqa: B023
    assert found[0] != found[1]


def test_buffers_of_one_memory_are_another_name():
    def two(one):
        model = Net()
        model.register_buffer("a", torch.zeros(4))
        model.register_buffer("b", model.a if one else torch.zeros(4))
        return Writer(model).module(model)

    assert two(True) == two(True) != two(False)


def test_a_function_of_torchs_that_was_replaced_is_another_name(monkeypatch):
    plain, before = Writer().value(patched()), described(Net())
    relu, forward = nn.functional.relu, nn.Linear.forward
    monkeypatch.setattr(nn.functional, "relu", lambda x, inplace=False: relu(x) * 2)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: forward(self, x) * 2)
    assert Writer().value(patched()) != plain
    assert described(Net()) != before


def test_a_hook_of_every_module_is_another_name():
    plain = Writer().value(patched())
    hook = nn.modules.module.register_module_forward_hook(lambda m, given, out: out)
    try:
        assert Writer().value(patched()) != plain
    finally:
        hook.remove()


def test_another_lowering_is_another_name():
    found = []
    for factor in (2, 3):
        detente.extend("named.twice.default", lambda call, x: factor * x, replace=True)  # noqa: B023
        found.append(Writer().value(lowerings()))
    del TABLE["named.twice.default"]
    assert found[0] != found[1]


def test_a_flag_of_torchs_is_another_name(monkeypatch):
    plain = _environment()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)
    flagged = _environment()
    assert flagged != plain
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if before != "medium" else "high")
    try:
        assert _environment() != flagged
    finally:
        torch.set_float32_matmul_precision(before)


class Signed(torch.optim.Optimizer):
    """By an attribute of its own, and by a branch on a number of its group."""

    def __init__(self, parameters, lr=0.1, factor=1.0, beta=0.5):
        super().__init__(parameters, {"lr": lr, "beta": beta})
        self.factor = factor

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    update = p.grad.sign() if group["beta"] > 0.7 else p.grad
                    p.add_(update, alpha=-group["lr"] * self.factor)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / "cache"))
    x = torch.ones(3, 4)

    def run(loss, optimizer=torch.optim.SGD, **options):
        torch.manual_seed(0)
        model = Net()
        made = optimizer(model.parameters(), lr=0.01, **options)
        return detente.compile(model, loss, made, example_batch=x, certificate="none"), x

    return run


def square(model, batch):
    return model(batch).pow(2).sum()


@pytest.mark.parametrize("other", [{"factor": 3.0}, {"beta": 0.9}], ids=["an attribute", "a branch"])
def test_another_update_is_another_program(trained, other):
    trained(square, Signed)
    assert trained(square, Signed)[0].programs[0].cached
    assert not trained(square, Signed, **other)[0].programs[0].cached


def test_what_code_reads_of_the_world_is_not_kept(trained, tmp_path):
    (tmp_path / "factor").write_text("2.0")

    def read(model, batch):
        with open(tmp_path / "factor") as file:
            return square(model, batch) * float(file.read())

    def environment(model, batch):
        return square(model, batch) * len(os.environ)

    with pytest.warns(UserWarning, match=r"read \(.*factor.*would look again in every step"):
        assert "factor" in trained(read)[0].programs[0].uncached
    assert "environ" in trained(environment)[0].programs[0].uncached


def test_code_that_nothing_leads_to_is_not_kept(trained):
    """A function that forward reaches through another object's table, here one that Python keeps for itself."""

    def hidden(value):
        return value * 2

    sys.intern_of_this_test = hidden  # type: ignore[attr-defined]

    def loss(model, batch):
        return next(v for k, v in sys.__dict__.items() if k[:9] == "intern_of")(square(model, batch))

    try:
        assert "hidden" in trained(loss)[0].programs[0].uncached
    finally:
        del sys.intern_of_this_test  # type: ignore[attr-defined]


def test_a_value_between_steps_is_not_taken_from_the_disk_of_before(trained):
    class Config:
        table = {"s": 2.0}  # noqa: RUF012

    step, x = trained(lambda m, b: square(m, b) * Config.table["s"])
    step(x)
    step.sync_to_torch()
    Config.table["s"] = 5.0
    with torch.no_grad():
        expected = float(square(step.model, x) * 5.0)
    assert float(step(x)) == pytest.approx(expected, rel=1e-5)


def test_a_stored_program_of_micro_batches_has_the_answers_of_this_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))

    def loss(model, batch):
        return square(model, batch) * (2 if (batch > 5).any() else 1)

    for number, found in ((1.0, False), (1.0, True), (9.0, False)):
        torch.manual_seed(0)
        model, x = Net(), torch.full((4, 4), number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with torch.no_grad():
            expected = float((loss(model, x[:2]) + loss(model, x[2:])) / 2)
        options = {"accumulate": 2, "certificate": "none", "quiet": True}
        step = detente.compile(model, loss, optimizer, example_batch=x, **options)
        assert step.programs[0].cached is found
        assert float(step(x)) == pytest.approx(expected, rel=1e-5)


TYPED_IN = """
import torch, detente
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x) * {factor}
torch.manual_seed(0)
model, x = Net(), torch.ones(3, 4)
step = detente.compile(model, lambda m, b: m(b).sum(), torch.optim.SGD(model.parameters(), lr=0.1), example_batch=x,
                       certificate="none")
with torch.no_grad():
    expected = float(model(x).sum())
print(step.programs[0].cached, abs(float(step(x)) - expected) < 1e-4)
"""


@pytest.mark.matrix
def test_a_class_that_was_typed_in_is_found_by_what_it_does(tmp_path):
    here = {**os.environ, "DETENTE_BRIDGE_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", TYPED_IN.format(factor=factor)],
            env=here, capture_output=True, text=True, check=True,
        ).stdout.split()
        for factor in (2, 2, 3)
    ]  # fmt: skip
    assert told == [["False", "True"], ["True", "True"], ["False", "True"]]
