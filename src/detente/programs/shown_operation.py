"""An operation as a line that people read: HLO's own spelling, without layouts."""

from __future__ import annotations

from detente.programs.module import Computation, Instruction, Shape


def shown_operation(one: Instruction, home: Computation) -> str:
    """``%multiply.3 = f32[2,16,64] multiply(%a.1, %b.2)``."""
    operands = ", ".join(f"%{home.instructions[o].name or o}" for o in one.operands)
    results = ", ".join(_shape(s) for s in one.results)
    results = results if len(one.results) == 1 else f"({results})"
    more = [f"to={','.join(one.called)}"] if one.called else []
    more += [f"dims={list(one.reduced)}"] if one.reduced else []
    more += [f"target={one.target}"] if one.target else []
    name = f"%{one.name} = " if one.name else ""
    return f"{name}{results} {one.opcode}({operands})" + "".join(f", {m}" for m in more)


def _shape(shape: Shape) -> str:
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"
