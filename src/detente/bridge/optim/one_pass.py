"""One parameter's update as the text of one loop, made from its trace.

XLA's CPU compiler fuses into one result only, so that an update with two moments reads its gradient and its moments
twice. The trace of ``run.update`` is arithmetic of numbers and of elements; here both are written down in C, once
each: the numbers before the loop, in their own dtypes, the elements inside it. bridge/kernels compiles and calls it.

How it can fail: what is not element by element (Adafactor's means, Muon's products), or whose arrays are not float32,
has no loop, and neither has what C's library would compute one element at a time (exponentials). ``written`` is None
for those, and XLA computes them as before. A multiplication and an addition are two roundings, as they stand in the
trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.kernels.build import loop, may_call
from detente.bridge.kernels.passes import call
from detente.bridge.optim.program import Program
from detente.bridge.optim.recording import SCOPE
from detente.bridge.optim.run import STARTED, update

_TYPES = {"float32": "float", "float64": "double", "bool": "bool", "int32": "int", "int64": "long long"}
_FLOATS = ("float32", "float64")
# By primitive; ``{f}`` is the suffix of C's functions for float. What is not a number comes through as in XLA.
_WRITTEN = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}", "square": "{0} * {0}",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}", "eq": "{0} == {1}",
    "ne": "{0} != {1}",
}  # fmt: skip
_OF_FLOATS = {
    "div": "{0} / {1}",
    "sqrt": "__builtin_sqrt{f}({0})",
    "abs": "__builtin_fabs{f}({0})",
    "max": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "min": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "sign": "{0} > 0 ? 1 : {0} < 0 ? -1 : {0}",
}
_OF_BOOLS = {"and": "{0} && {1}", "or": "{0} || {1}", "not": "!{0}", "xor": "{0} != {1}"}
# Of numbers alone: one call of C's library is no loss there.
_OF_NUMBERS = {
    "pow": "__builtin_pow{f}({0}, {1})",
    "exp": "__builtin_exp{f}({0})",
    "log": "__builtin_log{f}({0})",
}
_SAME = frozenset({"stop_gradient", "copy", "copy_p", "reshape", "squeeze", "broadcast_in_dim"})
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclass(frozen=True)
class Written:
    """``text`` defines ``numbers``, ``loop`` and how many numbers are ``kept`` between them (kernels/update.cc).
    Operands: the parameter, its gradient, the state's ``arrays``, its ``numbers``, and the group's row of float64, with
    one more that is not zero where nothing is to change, of a program that may say so.
    Results: the parameter, then the state's in the same order."""

    text: str
    arrays: tuple[str, ...]
    numbers: tuple[str, ...]


class _Row:
    """A group's numbers, where ``run.update`` reads them one by one."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __getitem__(self, place: Any) -> Any:
        return self.values[place[-1]]


class _Unwritten(Exception):
    """There is no loop of it."""


@dataclass
class _Writing:
    shape: tuple[int, ...]
    before: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    crossing: dict[str, str] = field(default_factory=dict)  # numbers that the loop reads, with their types
    made: int = 0

    def __post_init__(self) -> None:
        self.whole: set[str] = set()

    def name(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def kind(self, aval: Any) -> str:
        dtype = str(aval.dtype)
        if dtype in _TYPES and tuple(aval.shape) in (self.shape, ()):
            return "whole" if tuple(aval.shape) == self.shape else "number"
        raise _Unwritten(f"{aval}")

    def write(self, program: Any, consts: Sequence[Any], args: Sequence[str]) -> list[str]:
        known: dict[Any, str] = dict(zip(program.invars, args, strict=True))
        known |= {v: _literal(c) for v, c in zip(program.constvars, consts, strict=True)}

        def read(value: Any) -> str:
            return _literal(value.val) if hasattr(value, "val") else known[value]

        for eqn in program.eqns:
            given = [read(v) for v in eqn.invars]
            inner = next((eqn.params[k] for k in _INNER if k in eqn.params), None)
            if inner is not None:
                closed = hasattr(inner, "consts")
                out = self.write(inner.jaxpr if closed else inner, inner.consts if closed else (), given)
            else:
                out = [self.one(eqn, given)]
            known |= dict(zip(eqn.outvars, out, strict=True))
        return [read(v) for v in program.outvars]

    def one(self, eqn: Any, given: Sequence[str]) -> str:
        (result,) = (v.aval for v in eqn.outvars)
        kind, primitive = self.kind(result), eqn.primitive.name
        kinds = {self.kind(v.aval) for v in eqn.invars}
        if kind == "number" and "whole" in kinds:
            raise _Unwritten(primitive)  # a sum, or one element
        dtypes = [str(v.aval.dtype) for v in eqn.invars]
        if primitive in _SAME and str(result.dtype) == dtypes[0]:
            return given[0]
        text = self.expression(eqn, primitive, given, dtypes, str(result.dtype), kind)
        name = self.name()
        line = f"const {_TYPES[str(result.dtype)]} {name} = {text};"
        if kind == "whole":
            self.whole.add(name)
            for value, v in zip(given, eqn.invars, strict=True):
                self.crosses(value, v.aval)
            self.inside.append(line)
        else:
            self.before.append(line)
        return name

    def crosses(self, value: str, aval: Any) -> None:
        """A number that the loop reads. A literal is written there."""
        if value.startswith("v") and value not in self.whole:
            if str(aval.dtype) == "int64":
                raise _Unwritten("an integer of 64 bits, which a double does not hold")
            self.crossing[value] = _TYPES[str(aval.dtype)]

    def expression(
        self, eqn: Any, primitive: str, given: Sequence[str], dtypes: Sequence[str], result: str, kind: str
    ) -> str:
        suffix = "f" if dtypes[0] == "float32" else ""
        if primitive == "convert_element_type":
            if dtypes[0] in _FLOATS and result not in _FLOATS:
                raise _Unwritten("a float made an integer")
            return f"({_TYPES[result]}){given[0]}"
        if primitive == "select_n" and dtypes[0] == "bool" and len(given) == 3:
            return f"{given[0]} ? {given[2]} : {given[1]}"
        if primitive == "integer_pow" and eqn.params["y"] in (2, 3) and dtypes[0] in _FLOATS:
            return " * ".join([given[0]] * eqn.params["y"])
        for table, allowed in (
            (_WRITTEN, ("float32", "float64", "int32", "int64")),
            (_OF_FLOATS, _FLOATS),
            (_OF_BOOLS, ("bool",)),
            (_OF_NUMBERS if kind == "number" else {}, _FLOATS),
        ):
            if primitive in table and all(d in allowed for d in dtypes):
                return table[primitive].format(*given, f=suffix)
        raise _Unwritten(primitive)


def written(program: Program, started: bool, skips: bool) -> Written | None:
    """None where there is no loop of it. ``started``: the state says whether there was a step; ``skips``: the program
    says whether there is to be one. Under x64."""
    shape = tuple(program.param.shape)
    leaves = {leaf.key: leaf.aval for leaf in program.leaves}
    arrays = tuple(k for k, a in leaves.items() if tuple(a.shape) == shape)
    numbers = tuple(k for k in leaves if k not in arrays)
    if not shape or program.param.dtype != "float32" or any(leaves[k].dtype != "float32" for k in arrays):
        return None
    avals = {k: jax.ShapeDtypeStruct(tuple(a.shape), a.dtype) for k, a in leaves.items()}
    if started:
        numbers, avals = (*numbers, STARTED), {**avals, STARTED: jax.ShapeDtypeStruct((), np.bool_)}
    order = (*arrays, *numbers)
    like = jax.ShapeDtypeStruct(shape, np.float32)

    def run(param: Any, grad: Any, state: tuple[Any, ...], row: tuple[Any, ...]) -> tuple[Any, ...]:
        skip = row[-1] != 0 if skips else None
        numbers: Any = _Row(row)
        new, fresh = update(program, param, grad, dict(zip(order, state, strict=True)), numbers, (), skip)
        return (new, *(fresh[key] for key in order))

    row = tuple(jax.ShapeDtypeStruct((), jnp.float64) for _ in range(len(program.hyper) + skips))
    closed = jax.make_jaxpr(run)(like, like, tuple(avals[k] for k in order), row)
    writing = _Writing(shape)
    operands = [writing.name() for _ in closed.jaxpr.invars]
    try:
        kinds = [writing.kind(v.aval) for v in closed.jaxpr.invars]
        writing.whole |= {n for n, kind in zip(operands, kinds, strict=True) if kind == "whole"}
        results = writing.write(closed.jaxpr, closed.consts, operands)
        for value, v in zip(results, closed.jaxpr.outvars, strict=True):
            if writing.kind(v.aval) == "whole":
                writing.crosses(value, v.aval)
    except _Unwritten:
        return None
    return Written(_text(writing, closed.jaxpr, operands, results, len(row)), arrays, numbers)


def _text(writing: _Writing, program: Any, operands: Sequence[str], results: Sequence[str], row: int) -> str:
    """``row``: how many of the operands, the last ones, are the group's numbers, which come as one array. Numbers of
    float64 in front of them are the state's own."""
    before, inside, after, stores, pointers = [], [], [], [], []
    first_of_row = len(operands) - row
    for place, (name, v) in enumerate(zip(operands, program.invars, strict=True)):
        kind = _TYPES[str(v.aval.dtype)]
        if place >= first_of_row:
            before.append(
                f"const {kind} {name} = ((const {kind}*)in[{first_of_row}])[{place - first_of_row}];"
            )
        elif name in writing.whole:
            pointers.append(f"const float* i{place} = (const float*)in[{place}];")
            inside.append(f"const float {name} = i{place}[e];")
        else:
            before.append(f"const {kind} {name} = *(const {kind}*)in[{place}];")
    for place, (value, v) in enumerate(zip(results, program.outvars, strict=True)):
        kind = _TYPES[str(v.aval.dtype)]
        if writing.kind(v.aval) == "whole":
            pointers.append(f"float* o{place} = (float*)out[{place}];")
            stores.append(f"o{place}[e] = {value};")
        else:
            after.append(f"*({kind}*)out[{place}] = {value};")
    crossing = list(writing.crossing.items())
    after += [f"keep[{k}] = (double){name};" for k, (name, _) in enumerate(crossing)]
    given = [f"const {kind} {name} = ({kind})keep[{k}];" for k, (name, kind) in enumerate(crossing)]
    arrays, numbers = "const void* const* in, void* const* out", "double* keep"
    return "\n".join(
        (
            f'extern "C" const long long kept = {len(crossing)};',
            f'extern "C" void numbers({arrays}, {numbers}) {{',
            *before, *writing.before, *after,
            "}",
            f'extern "C" void loop({arrays}, const {numbers}, long long from, long long to) {{',
            *pointers, *given,
            # Each array is read and written at the same place, if at all.
            "#if defined(__clang__)", "#pragma clang loop vectorize(assume_safety)",
            "#else", "#pragma GCC ivdep", "#endif",
            "for (long long e = from; e < to; ++e) {",
            *inside, *writing.inside, *stores,
            "}", "}", "",
        )
    )  # fmt: skip


def _literal(value: Any) -> str:
    """As C writes it, to the last digit."""
    array = np.asarray(value)
    if array.shape != () or str(array.dtype) not in _TYPES:
        raise _Unwritten(f"a constant of shape {array.shape} and {array.dtype}")
    if str(array.dtype) == "bool":
        return "true" if array else "false"
    if str(array.dtype) not in _FLOATS:
        return f"({int(array)}{'LL' if str(array.dtype) == 'int64' else ''})"
    number = float(array)
    if not math.isfinite(number):
        raise _Unwritten(str(number))
    return f"({number.hex()}{'f' if str(array.dtype) == 'float32' else ''})"


@dataclass(frozen=True)
class OnePass:
    """A program's loop, as the extension knows it."""

    key: int
    written: Written
    layers: int | None  # of a stack

    def __call__(
        self, param: Any, grad: Any, state: Mapping[str, Any], numbers: Any, skip: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """As ``run.update``; of a stack for each layer, whose numbers may be rows of their own."""
        if skip is not None:
            more = jnp.broadcast_to(skip.astype(jnp.float64), (*numbers.shape[:-1], 1))
            numbers = jnp.concatenate((numbers, more), -1)
        order = (*self.written.arrays, *self.written.numbers)
        kept = [state[key] for key in order]
        arrays = len(self.written.arrays) + 2
        with jax.named_scope(SCOPE):
            new, *fresh = call(self.key, (param, grad, *kept, numbers), arrays, self.layers, numbers.ndim > 1)
        return new, dict(zip(order, fresh, strict=True))


def one_pass(
    program: Program,
    param: Any,
    grad: Any,
    state: Mapping[str, Any],
    stacked: bool = False,
    skips: bool = False,
) -> OnePass | None:
    """Where a lowering may call kernels, and there is a loop of this update. Under x64."""
    if not may_call() or not (param.dtype == grad.dtype == jnp.float32) or param.shape != grad.shape:
        return None
    if tuple(param.shape[stacked:]) != tuple(program.param.shape):
        return None
    found = written(program, STARTED in state, skips)
    key = None if found is None else loop(found.text)
    return None if found is None or key is None else OnePass(key, found, param.shape[0] if stacked else None)
