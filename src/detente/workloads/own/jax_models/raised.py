"""A function of JAX in float64, *raised*: what its program makes narrower (``logits.astype(jnp.float32)``, the softmax
of ``jax.nn.dot_product_attention``) stays float64. See own/raised.py, torch's side of the same.

While the function runs, the narrow dtypes of ``jax.numpy`` mean float64. What narrows all the same (a dtype by its
name, numpy's) is in the program, which is then evaluated equation by equation with every floating point wide: calls are
entered, loops are made anew around a raised body. How it can fail: there a number that stands in the program was
rounded when it was written. A derivative of a user's own (``jax.custom_vjp``), bits that are taken from a float, and a
kernel know their dtypes: a program that narrows around one of these is left as it is, and its proof says that something
computes in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from detente.workloads.own.jax_models.scanned import cut

# Operators that are entered, and where each keeps its program. Of a jax.custom_jvp that meets nothing narrow the rule
# is kept (relu's derivative at 0 is 0, that of what it is made of a half); else JAX differentiates what is entered.
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr",
    "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "core_closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
}  # fmt: skip
# Parameters that name the dtype of a result.
_NAMED = ("new_dtype", "dtype", "preferred_element_type", "accumulation_type")


class Unraisable(Exception):
    """An operator that knows its dtypes is given what would be wider."""


def raised(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of arrays in trees, with nothing narrowed on its way."""

    def run(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        shapes: list[Any] = []

        def flat(*given: Any) -> Any:
            found, shape = jax.tree.flatten(function(*jax.tree.unflatten(tree, given)))
            shapes[:] = [shape]
            return found

        with _wide_names():
            program = jax.make_jaxpr(flat)(*leaves)
            if not _narrows(program):
                return function(*args)
            try:
                found = _evaluate(program, leaves)
            except Unraisable:
                return function(*args)
        return jax.tree.unflatten(shapes[0], found)

    return run


@contextmanager
def _wide_names() -> Iterator[None]:
    """``x.astype(jnp.float32)`` in a function that runs meanwhile narrows nothing, and 0.1 behind it is 0.1."""
    module: Any = jnp
    plain = {name: getattr(module, name) for name in ("float32", "float16", "bfloat16")}
    try:
        for name in plain:
            setattr(module, name, jnp.float64)
        yield
    finally:
        for name, dtype in plain.items():
            setattr(module, name, dtype)


def _narrows(program: Any) -> bool:
    """Whether somewhere in it, or in a program inside, wide values become narrow ones."""
    for equation in _inner(program).eqns:
        wide = any(_is_wide(v.aval) for v in equation.invars)
        if wide and any(_is_narrow(v.aval) for v in equation.outvars):
            return True
        if any(map(_narrows, _programs(equation))):
            return True
    return False


def _evaluate(program: Any, args: Sequence[Any]) -> list[Any]:
    jaxpr = _inner(program)
    env = dict(zip(jaxpr.constvars, map(_widened, getattr(program, "consts", ())), strict=True))
    env.update(zip(jaxpr.invars, map(_widened, args), strict=True))

    def look(atom: Any) -> Any:
        return _widened(atom.val) if isinstance(atom, jex.Literal) else env[atom]

    for equation in jaxpr.eqns:
        found = _one(equation, [look(v) for v in equation.invars])
        env.update(zip(equation.outvars, map(_widened, found), strict=True))
    return [look(v) for v in jaxpr.outvars]


def _one(equation: Any, values: list[Any]) -> Sequence[Any]:
    name, params = equation.primitive.name, equation.params
    met = any(_is_narrow(v.aval) for v in (*equation.invars, *equation.outvars))
    if name == "custom_jvp_call" and not met and not _narrows(params[_CALLS[name]]):
        return _alone(equation, values)
    if name in _CALLS and _CALLS[name] in params:
        return _evaluate(params[_CALLS[name]], values)
    if name in _LOOPS:
        return _LOOPS[name](equation, values)
    if name == "convert_element_type" and jnp.issubdtype(params["new_dtype"], jnp.inexact):
        return [values[0].astype(_wide(params["new_dtype"]))]
    if name == "reduce_precision":
        return values
    if met and (_programs(equation) or name in ("bitcast_convert_type", "pallas_call", "ffi_call")):
        # A number that is drawn is made of bits, and is wide from there on.
        if name != "bitcast_convert_type" or _is_float(equation.invars[0].aval):
            raise Unraisable(name)
        met = False
    if met:
        params = {k: _wide(v) if k in _NAMED and v is not None else v for k, v in params.items()}
    if _programs(equation):
        return _alone(equation, values)
    found = equation.primitive.bind(*values, **params)
    return found if equation.primitive.multiple_results else [found]


def _alone(equation: Any, values: Sequence[Any]) -> Sequence[Any]:
    """As a program of this equation alone: how one with programs inside is bound differs between versions of JAX."""
    given = {v: a for v, a in zip(equation.invars, values, strict=True) if not isinstance(v, jex.Literal)}
    # Any program will do as the one to change.
    empty = jax.make_jaxpr(lambda: ())().jaxpr
    alone = empty.replace(invars=list(given), outvars=list(equation.outvars), eqns=[equation])
    return jex.jaxpr_as_fun(jex.ClosedJaxpr(alone, []))(*given.values())


def _scan(equation: Any, values: list[Any]) -> Sequence[Any]:
    params, (fixed, carried) = equation.params, cut(equation)
    consts, first, stacked = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]

    def body(carry: Any, each: Any) -> Any:
        found = [_widened(a) for a in _evaluate(params["jaxpr"], [*consts, *carry, *each])]
        return found[:carried], found[carried:]

    last, all_of = jax.lax.scan(
        body, first, stacked, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*last, *all_of]


def _while(equation: Any, values: list[Any]) -> Sequence[Any]:
    params = equation.params
    asks, moves = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, first = values[:asks], values[asks : asks + moves], values[asks + moves :]
    return jax.lax.while_loop(
        lambda carry: _evaluate(params["cond_jaxpr"], [*of_cond, *carry])[0],
        lambda carry: _evaluate(params["body_jaxpr"], [*of_body, *carry]),
        first,
    )


def _cond(equation: Any, values: list[Any]) -> Sequence[Any]:
    branches = [lambda *args, b=branch: _evaluate(b, args) for branch in equation.params["branches"]]
    return jax.lax.switch(values[0], branches, *values[1:])


_LOOPS: dict[str, Callable[[Any, list[Any]], Sequence[Any]]] = {"scan": _scan, "while": _while, "cond": _cond}


def _programs(equation: Any) -> list[Any]:
    """The programs inside of an equation."""
    found = []
    for value in equation.params.values():
        found += [v for v in (value if isinstance(value, tuple | list) else (value,)) if _is_program(v)]
    return found


def _is_program(value: Any) -> bool:
    return isinstance(value, jex.ClosedJaxpr | jex.Jaxpr)


def _inner(program: Any) -> Any:
    return program.jaxpr if isinstance(program, jex.ClosedJaxpr) else program


def _is_float(aval: Any) -> bool:
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact)


def _is_narrow(aval: Any) -> bool:
    return _is_float(aval) and _wide(aval.dtype) != aval.dtype


def _is_wide(aval: Any) -> bool:
    return _is_float(aval) and not _is_narrow(aval)


def _wide(dtype: Any) -> Any:
    """The widest dtype of its kind; what is no floating point as it is."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.dtype("complex128")
    return jnp.dtype("float64") if jnp.issubdtype(dtype, jnp.floating) else dtype


def _widened(value: Any) -> Any:
    """A literal of the program may be a number of Python's."""
    value = value if hasattr(value, "dtype") else jnp.asarray(value)
    return value.astype(_wide(value.dtype)) if _is_narrow(value) else value
