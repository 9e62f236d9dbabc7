"""A program of one shape, written for another: of torch's own optimizers whose update is of each element.

A trace takes some ten milliseconds, and a model has dozens of shapes that differ in their lengths alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from detente.bridge.graph import Aval, Node
from detente.bridge.optim.program import Guard, Program

# Their default paths look at no length. Adafactor and Muon do.
OF_EACH_ELEMENT = frozenset(
    {
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.ASGD,
        torch.optim.Rprop,
    }
)
_TORCH = torch.__path__[0] + os.sep


def of_each_element(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one of torch's, as torch has it: a class' ``step`` may have been replaced, or wrapped."""
    if type(optimizer) not in OF_EACH_ELEMENT:
        return False
    step: Any = type(optimizer).step
    while step is not None:
        code = getattr(step, "__code__", None)
        if code is None or not code.co_filename.startswith(_TORCH):
            return False
        step = getattr(step, "__wrapped__", None)
    return True


def reshaped(program: Program, param: Aval) -> Program | None:
    """``program`` for parameters like ``param``; None where that is not known. Only for programs of an optimizer that
    is ``of_each_element``, and between shapes of as many axes: what asks for their number asks in both."""
    shape = program.param.shape
    if not shape or len(shape) != len(param.shape) or program.param.dtype != param.dtype:
        return None
    others = {shape: param.shape}
    if "complex" in param.dtype:  # updates of complex numbers are those of their two real ones
        others[*shape, 2] = (*param.shape, 2)
    if not _shapes(program) <= {(), *others}:
        return None
    return _at(program, others)


def _shapes(value: Any) -> set[tuple[int, ...]]:
    """Of everything that a program takes, computes and gives."""
    if isinstance(value, Aval):
        return {value.shape}
    if isinstance(value, dict):
        return _shapes(tuple(value.values()))
    if is_dataclass(value) and not isinstance(value, type | Guard):
        return _shapes(tuple(getattr(value, f.name) for f in fields(value)))
    return {shape for item in value for shape in _shapes(item)} if isinstance(value, tuple) else set()


def _at(value: Any, others: Mapping[tuple[int, ...], tuple[int, ...]]) -> Any:
    """The same with other shapes in the place of some, also where an operator is given one (``zeros``)."""
    if isinstance(value, tuple):
        if all(type(n) is int for n in value) and value in others:
            return others[value]
        return tuple(_at(item, others) for item in value)
    if isinstance(value, Node):  # whose arguments may be one number, which is no shape
        args = tuple(_at(item, others) for item in value.args)
        return replace(value, args=args, kwargs=_at(value.kwargs, others), out=_at(value.out, others))
    if isinstance(value, dict):
        return {key: _at(item, others) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type | Guard):
        return replace(value, **{f.name: _at(getattr(value, f.name), others) for f in fields(value)})
    return value
