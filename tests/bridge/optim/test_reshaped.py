"""A program that is written for other lengths is the one that a trace of them gives."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from detente.bridge.graph import Aval
from detente.bridge.optim import rule as rules
from detente.bridge.optim.reshaped import OF_EACH_ELEMENT, reshaped
from detente.bridge.optim.rule import trace
from tests.sampled import sampled

SHAPES = ((3,), (1,), (7,), (2, 3), (1, 1), (3, 2), (5, 1, 2), (2, 2, 2), ())
OPTIONS: dict[type, tuple[dict[str, Any], ...]] = {
    torch.optim.SGD: (
        {},
        {"momentum": 0.9, "dampening": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    torch.optim.Adam: ({}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}),
    torch.optim.AdamW: ({}, {"amsgrad": True}, {"fused": False, "foreach": True}),
    torch.optim.Adamax: ({}, {"weight_decay": 0.1}),
    torch.optim.NAdam: ({}, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    torch.optim.RAdam: ({}, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    torch.optim.RMSprop: ({}, {"centered": True, "momentum": 0.9}),
    torch.optim.Adagrad: ({}, {"initial_accumulator_value": 0.5}),
    torch.optim.Adadelta: ({},),
    torch.optim.ASGD: ({},),
    torch.optim.Rprop: ({},),
}
CASES = [
    pytest.param(k, o, id=f"{k.__name__}-{i}") for k, each in OPTIONS.items() for i, o in enumerate(each)
]


def programs(kind: type, options: dict[str, Any], shapes: tuple[tuple[int, ...], ...], **more: Any) -> Any:
    weights = nn.ParameterList(nn.Parameter(torch.zeros(shape, **more)) for shape in shapes)
    return trace(kind(weights.parameters(), lr=0.1, **options), weights.named_parameters()).programs


def test_every_optimizer_that_is_reshaped_is_here() -> None:
    assert set(OPTIONS) == OF_EACH_ELEMENT


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("dtype", sampled([torch.float32, torch.bfloat16, torch.complex64], 3), ids=str)
def test_it_is_the_program_that_a_trace_gives(
    kind: type, options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever shape came first, one of a single element too."""
    for shapes in (SHAPES, SHAPES[::-1], ((1,), (5,), (1, 1), (1, 4), (3, 1))):
        quick = programs(kind, options, shapes, dtype=dtype)
        with monkeypatch.context() as patched:
            patched.setattr(rules, "reshaped", lambda program, param: None)
            slow = programs(kind, options, shapes, dtype=dtype)
        assert quick == slow
        for name, program in quick.items():
            assert [g.expected for g in program.guards] == [g.expected for g in slow[name].guards]
            assert program.halves == slow[name].halves and program.step.writes == slow[name].step.writes


def test_as_many_traces_as_numbers_of_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    plain = rules._program
    monkeypatch.setattr(rules, "_program", lambda *a: traced.append(a[2].shape) or plain(*a))
    programs(torch.optim.AdamW, {}, SHAPES)
    assert traced == [(3,), (2, 3), (5, 1, 2), ()]
    # Whose update looks at lengths is traced for each.
    traced.clear()
    programs(torch.optim.Adafactor, {}, ((4, 3), (3, 4)))
    assert traced == [(4, 3), (3, 4)]


class Lengths(torch.optim.SGD):
    """Looks at a length: a subclass is nobody's that is known."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-1.0 / p.shape[0])


def test_a_users_own_is_traced_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    plain = rules._program
    monkeypatch.setattr(rules, "_program", lambda *a: traced.append(a[2].shape) or plain(*a))
    weights = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in (2, 3))
    trace(Lengths(weights.parameters(), lr=0.1), weights.named_parameters())
    assert traced == [(2,), (3,)]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_that_was_put_in_the_place_of_torchs_is_traced_for_each_shape(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.optim.SGD.step

    def step(self: Any, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(p.shape[0])
        plain(self)

    monkeypatch.setattr(torch.optim.SGD, "step", functools.wraps(plain)(step) if wrapped else step)
    found = programs(torch.optim.SGD, {}, ((2,), (3,)))
    two, three = (program.step.paths[0].graph for program in found.values())
    numbers = [
        [a for n in graph.nodes for a in n.args if type(a) is int and a in (2, 3)] for graph in (two, three)
    ]
    assert numbers == [[2], [3]]


def test_other_numbers_of_axes_are_not_known() -> None:
    (program,) = programs(torch.optim.SGD, {}, ((4,),)).values()
    assert reshaped(program, Aval((4, 1), "float32")) is None
    assert reshaped(program, Aval((4,), "bfloat16")) is None
    assert reshaped(program, Aval((5,), "float32")) is not None


def test_a_program_with_a_shape_that_is_nobodys_is_not_rewritten() -> None:
    """Its axes could be any of the parameter's, or none."""
    (program,) = programs(torch.optim.Adam, {}, ((4, 3),)).values()
    strange = replace(program.leaves[1], aval=Aval((3, 4), "float32"))
    odd = replace(program, step=replace(program.step, leaves=(program.leaves[0], strange)))
    assert reshaped(program, Aval((5, 2), "float32")) is not None
    assert reshaped(odd, Aval((5, 2), "float32")) is None
