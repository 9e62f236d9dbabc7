"""JAX's side: the program of a function, one equation after the other, and what comes out where a parameter is used.

JAX takes an operation apart that torch has whole: a normalisation multiplies, and adds later; a scale may meet
``rsqrt`` before it meets an activation; the bias joins a product that has been cut into heads. So what is recorded is
more than where a parameter is consumed: also the results of the next few operations, one of which is what torch's
operation gave.

Calls (jit, remat, custom derivatives) are entered, ``cond`` at the branch that is taken, and ``scan`` pass by pass,
where a stacked parameter becomes ``name[i]``. A ``while`` is evaluated as one operation.

How it can fail: an equation is compiled by itself, a few milliseconds each; a loop of thousands of passes takes
minutes. What a function closes over has no name.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from detente.records.fault import UsageFault
from detente.worker.layers.record import Boundary, Values, narrowest, values_of
from detente.workloads.own.jax_models.scanned import cut

# So many operations behind the one that consumed a parameter are recorded. A normalisation needs two
# (rsqrt * scale, x * that, + bias); a convolution as a sum of nine products needs one per product behind the first.
BEHIND = 8

# Operators that are entered, and where each keeps its program.
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr",
    "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "core_closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr",
    "composite": "jaxpr",
}  # fmt: skip
# Operators whose result holds the same values, more or fewer of them; they are no step.
_VIEWS = frozenset(
    {
        "reshape", "transpose", "broadcast_in_dim", "convert_element_type", "squeeze", "expand_dims", "slice",
        "dynamic_slice", "concatenate", "split", "copy", "copy_p", "rev", "name", "optimization_barrier",
        "stop_gradient", "sharding_constraint", "reduce_precision", "gather", "pad", "pvary", "reshard",
        "layout_constraint",
    }
)  # fmt: skip
# Of those, ones after which the values are the same ones as before, as often or oftener.
_SAME = _VIEWS - {"slice", "dynamic_slice", "concatenate", "split", "gather", "pad"}
# Operators whose parameter is no result itself, whatever torch makes of it: large, and not worth its sorting.
_PRODUCTS = frozenset({"dot_general", "ragged_dot", "ragged_dot_general", "conv_general_dilated", "gather"})


@dataclass(frozen=True)
class _Value:
    """An array of the program.

    held   the parameters that it is made of, where it is made of nothing else, in the order of a concatenation
    near   the parameters that were consumed on the way to it, and how many operations ago
    flows  whether it depends on anything but parameters and constants
    through  the narrowest floats on the way to it
    """

    array: Any
    held: tuple[str, ...] = ()
    near: Mapping[str, int] = field(default_factory=dict)
    flows: bool = False
    through: str = ""

    @property
    def followed(self) -> bool:
        return bool(self.held or self.near)


def walk(function: Callable[..., Any], named: Mapping[str, Any], *args: Any) -> list[Boundary]:
    """The boundaries of ``function(named, *args)`` in order of evaluation; the parameters are the leaves of ``named``.
    Raises UsageFault where ``named`` is in float64 and JAX would compute in float32."""
    wanted = any(a.dtype == np.float64 for a in named.values())
    if wanted and jnp.asarray(np.float64(0)).dtype != np.float64:
        raise UsageFault(
            "the parameters are float64, and JAX turns float64 into float32 here",
            'call it under `with jax.enable_x64(True):`, or `jax.config.update("jax_enable_x64", True)` first',
        )
    names = list(named)
    leaves, tree = jax.tree.flatten(args)

    def flat(parameters: Sequence[Any], rest: Sequence[Any]) -> Any:
        return jax.tree.leaves(
            function(dict(zip(names, parameters, strict=True)), *jax.tree.unflatten(tree, rest))
        )

    given = [jnp.asarray(named[n]) for n in names]
    program = jax.make_jaxpr(flat)(given, leaves)
    inputs = [_Value(a, held=(n,)) for n, a in zip(names, given, strict=True)]
    inputs += [_Value(jnp.asarray(a), flows=True) for a in leaves]
    found = _Walk()
    found.run(program.jaxpr, program.consts, inputs)
    return found.found


class _Walk:
    def __init__(self) -> None:
        self.found: list[Boundary] = []
        # parameters that met an activation as they are, and how many of their values
        self._met: set[tuple[tuple[str, ...], int]] = set()
        self._sites: dict[
            tuple[int, int], int
        ] = {}  # id of an equation, all of which live as long as the program

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[_Value]) -> list[_Value]:
        """The results of a program, as ``jax.extend.core.jaxpr_as_fun`` would give them."""
        env: dict[Any, _Value] = dict(zip(jaxpr.constvars, map(_Value, consts), strict=True))
        env.update(zip(jaxpr.invars, inputs, strict=True))
        last = {v: i for i, e in enumerate(jaxpr.eqns) for v in e.invars if not isinstance(v, jex.Literal)}
        kept = {v for v in jaxpr.outvars if not isinstance(v, jex.Literal)}

        def look(atom: Any) -> _Value:
            return _Value(atom.val) if isinstance(atom, jex.Literal) else env[atom]

        for i, equation in enumerate(jaxpr.eqns):
            values = [look(v) for v in equation.invars]
            results = self._evaluate(jaxpr, equation, values, last.keys() | kept)
            env.update(zip(equation.outvars, results, strict=True))
            # An activation lives as long as it would in the program.
            for v in {v for v in equation.invars if not isinstance(v, jex.Literal)}:
                if last[v] == i and v not in kept:
                    del env[v]
        return [look(v) for v in jaxpr.outvars]

    def _evaluate(
        self, jaxpr: Any, equation: Any, values: list[_Value], read: Container[Any]
    ) -> list[_Value]:
        name = equation.primitive.name
        if any(v.followed for v in values):
            if name in _CALLS and _CALLS[name] in equation.params:
                return self._enter(equation.params[_CALLS[name]], values)
            if name == "cond":
                branches = equation.params["branches"]
                taken = min(max(int(values[0].array), 0), len(branches) - 1)
                return self._enter(branches[taken], values[1:])
            if name == "scan" and equation.params["length"]:
                return self._scan(equation, values)
        return self._one(jaxpr, equation, values, read)

    def _enter(self, program: Any, values: Sequence[_Value]) -> list[_Value]:
        if isinstance(program, jex.ClosedJaxpr):
            return self.run(program.jaxpr, program.consts, values)
        return self.run(program, (), values)

    def _scan(self, equation: Any, values: Sequence[_Value]) -> list[_Value]:
        params = equation.params
        length, (fixed, carried) = params["length"], cut(equation)
        consts, carry = values[:fixed], list(values[fixed : fixed + carried])
        stacked = values[fixed + carried :]
        passes: dict[int, list[_Value]] = {}
        for i in reversed(range(length)) if params["reverse"] else range(length):
            out = self._enter(
                params["jaxpr"], [*consts, *carry, *(self._slice(v, i, length) for v in stacked)]
            )
            carry, passes[i] = out[:carried], out[carried:]
        return [*carry, *(_stack([passes[i][k] for i in range(length)]) for k in range(len(passes[0])))]

    def _slice(self, value: _Value, i: int, length: int) -> _Value:
        """The i-th of a stack; of a stack that was made of as many parameters, that parameter."""
        names = value.held
        names = (names[i],) if len(names) == length > 1 else tuple(f"{n}[{i}]" for n in names[:1]) + names[1:]
        return replace(value, array=value.array[i], held=names)

    def _one(self, jaxpr: Any, equation: Any, values: list[_Value], read: Container[Any]) -> list[_Value]:
        name = equation.primitive.name
        arrays = _results(jaxpr, equation, [v.array for v in values], read)
        held = tuple(dict.fromkeys(n for v in values for n in v.held))
        met = (str(a.dtype) for a in [*(v.array for v in values), *arrays] if a is not None)
        through = narrowest([*met, *(v.through for v in values)])
        if not any(v.flows for v in values):
            if held and name not in _SAME:
                self._record(equation, arrays, held, {}, None, through)
            return [_Value(a, held, through=through) for a in arrays]
        near = {n: s for n, s in _nearest(values, name not in _VIEWS).items() if n not in held}
        if name not in _PRODUCTS:
            # torch looks up places in a table that is added whole here.
            for k, value in enumerate(values):
                if value.held and (value.held, value.array.size) not in self._met:
                    self._met.add((value.held, value.array.size))
                    self._record(equation, [value.array], value.held, {}, None, value.through, -1 - k)
        if held or (near and name not in _SAME):
            self._record(equation, arrays, held, near, _largest(values) if held else None, through)
        near |= dict.fromkeys(held, 0)
        return [_Value(a, (), near, True, through) for a in arrays]

    def _record(
        self,
        equation: Any,
        arrays: Sequence[Any],
        held: tuple[str, ...],
        near: Mapping[str, int],
        given: Values | None,
        through: str,
        first: int = 0,
    ) -> None:
        """``first``: which result of the equation the first of these is; its arguments count down from -1."""
        name = equation.primitive.name
        for k, array in enumerate(arrays, first):
            # A result that nothing reads is None.
            if array is None or not jnp.issubdtype(array.dtype, jnp.inexact):
                continue
            values = values_of(np.asarray(array))
            # Results of one equation that are several (a split) are sites of their own.
            site = self._sites.setdefault((id(equation), k), len(self._sites))
            shape = tuple(array.shape)
            if held:
                self.found.append(Boundary(held, name, shape, values, given, 0, site, through))
            if near:
                steps = min(near.values())
                self.found.append(
                    Boundary(tuple(near), name, shape, values, None, max(steps, 1), site, through)
                )


def _results(jaxpr: Any, equation: Any, arrays: Sequence[Any], read: Container[Any]) -> list[Any]:
    """As a program of this equation alone: how a primitive is bound differs between versions of JAX. None where
    nothing reads the result."""
    given = {v: a for v, a in zip(equation.invars, arrays, strict=True) if not isinstance(v, jex.Literal)}
    outs = [v for v in equation.outvars if v in read]
    alone = jaxpr.replace(constvars=[], invars=list(given), outvars=outs, eqns=[equation])
    found = iter(jex.jaxpr_as_fun(jex.ClosedJaxpr(alone, []))(*given.values()))
    return [next(found) if v in read else None for v in equation.outvars]


def _nearest(values: Sequence[_Value], step: bool) -> dict[str, int]:
    """What was consumed on the way to any of these, as it stands behind the next operation."""
    found: dict[str, int] = {}
    for value in values:
        for name, steps in value.near.items():
            found[name] = min(steps + step, found.get(name, BEHIND))
    return {n: s for n, s in found.items() if s < BEHIND}


def _largest(values: Sequence[_Value]) -> Values | None:
    found = [
        v.array for v in values if v.flows and jnp.issubdtype(v.array.dtype, jnp.inexact) and v.array.size
    ]
    return values_of(np.asarray(max(found, key=lambda a: a.size))) if found else None


def _stack(passes: Sequence[_Value]) -> _Value:
    flows = any(v.flows for v in passes)
    held = () if flows else tuple(dict.fromkeys(n for v in passes for n in v.held))
    return _Value(
        jnp.stack([v.array for v in passes]),
        held,
        _nearest(passes, False),
        flows,
        narrowest(v.through for v in passes),
    )
