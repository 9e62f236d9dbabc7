"""How the operands of a ``scan`` are cut: what every pass reads, what it hands on, and what it takes a slice of."""

from __future__ import annotations

from typing import Any


def cut(scan: Any) -> tuple[int, int]:
    """Of an equation: how many operands every pass reads as they are, and how many behind them it hands on to the next;
    the others are stacks. Seen by their shapes, because parameters that say it have other names in other versions of
    JAX (``num_consts`` and ``num_carry`` until 0.11): a stack has a dimension more than what a pass sees of it.

    >>> import jax
    >>> def run(weight, state, stack):
    ...     return jax.lax.scan(lambda carry, x: (carry * weight + x, carry), state, stack)
    >>> program = jax.make_jaxpr(run)(2.0, 0.0, jax.numpy.ones(3))
    >>> cut(program.eqns[-1])
    (1, 1)
    """
    body = scan.params["jaxpr"]
    body = getattr(body, "jaxpr", body)  # closed until 0.11
    taken = sum(map(_is_stack, scan.invars, body.invars))
    made = sum(map(_is_stack, scan.outvars, body.outvars))
    carried = len(scan.outvars) - made
    return len(scan.invars) - taken - carried, carried


def _is_stack(whole: Any, of_a_pass: Any) -> bool:
    return len(whole.aval.shape) > len(of_a_pass.aval.shape)
