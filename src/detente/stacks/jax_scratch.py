"""Scratch that no plan of XLA's holds: what its CPU library packs operands into while a product runs.

Of ResNet-50 it is a tenth of the process. The compiler's plan ends at the buffers that it assigns; Eigen's contraction
allocates beside them and gives back. So the products themselves are asked: the largest ones of a program run alone, and
what the process grew by beyond their own plan is theirs. How it can fail: a product that is not among the largest packs
more, or the program holds less than its peak while the hungriest runs; the plan is then too high, never too low by more
than it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detente.stacks.process_memory import forget_peak, peak, resident
from detente.stacks.xla_memory import read_plan

_PRODUCTS = ("dot_general", "conv_general_dilated")
# So many of each kind run; no one whose operands and result would be a burden of their own.
_TRIED = 4
_MOST_BYTES = 2**30


def library_scratch(jax: Any, program: Any) -> int:
    """Bytes that the hungriest product of a program (a ClosedJaxpr) takes beside its operands, its result and what its
    plan holds; 0 where the system does not let a process measure its peak.

    >>> import jax, jax.numpy as jnp
    >>> library_scratch(jax, jax.make_jaxpr(jnp.sin)(1.0))
    0
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in _PRODUCTS}
    for equation in _products(program):
        found[equation.primitive.name].setdefault(_identity(equation), equation)
    most = 0
    for kind in found.values():
        small = [e for e in kind.values() if _bytes(e) <= _MOST_BYTES]
        for equation in sorted(small, key=_bytes, reverse=True)[:_TRIED]:
            most = max(most, _scratch(jax, equation))
    return most


def _scratch(jax: Any, equation: Any) -> int:
    """Of one product, run alone."""

    def run(*operands: Any) -> Any:
        return equation.primitive.bind(*operands, **equation.params)

    avals = [v.aval for v in equation.invars]
    compiled = jax.jit(run).lower(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)).compile()
    plan = read_plan(compiled.memory_analysis())
    if not plan:
        return 0
    # Ones: pages of zeros may be one page.
    operands = [jax.numpy.ones(a.shape, a.dtype) for a in avals]
    jax.block_until_ready(operands)
    if not forget_peak():
        return 0
    before = resident()
    jax.block_until_ready(compiled(*operands))
    return max(int(peak() - before - plan["output_bytes"] - plan["temp_bytes"]), 0)


def _products(program: Any) -> Iterator[Any]:
    """Every product of a program, those of what it calls as well."""
    inner = getattr(program, "jaxpr", program)
    for equation in inner.eqns:
        if equation.primitive.name in _PRODUCTS:
            yield equation
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                if hasattr(one, "eqns") or hasattr(one, "jaxpr"):
                    yield from _products(one)


def _identity(equation: Any) -> str:
    return (
        f"{[str(v.aval) for v in equation.invars]} {sorted((k, str(v)) for k, v in equation.params.items())}"
    )


def _bytes(equation: Any) -> int:
    return sum(v.aval.size * v.aval.dtype.itemsize for v in (*equation.invars, *equation.outvars))
