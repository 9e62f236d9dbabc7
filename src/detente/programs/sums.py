"""Sums that are added in a narrow dtype: how many terms one result of them is added of.

A library's sum of bfloat16 adds in float32 and rounds once; a program may ask for another one. JAX's own ``jnp.sum``
widens, and the derivative of a broadcast (a bias that every row of a batch is given) does not: it is a ``reduce`` whose
body adds two bfloat16 numbers, and XLA's CPU compiler does as it is told, a rounding for every term.
"""

from __future__ import annotations

import math

from detente.programs.module import Computation, Instruction, Module

NARROW = frozenset({"bf16", "f16"})


def narrow_terms(one: Instruction, home: Computation, module: Module) -> int:
    """How many terms each result of a ``reduce`` is added of, where they are added in half precision; else 0."""
    if one.opcode != "reduce" or one.shape.dtype not in NARROW or not _adds(one, module):
        return 0
    return math.prod(home.instructions[one.operands[0]].shape.dims[d] for d in one.reduced)


def _adds(one: Instruction, module: Module) -> bool:
    if one.target:  # of a text that names the operation in place of a body
        return one.target == "add"
    return any(_root(module.computations[name]).opcode == "add" for name in one.called)


def _root(body: Computation) -> Instruction:
    return body.instructions[body.root]
