"""Small programs, built by hand, for the tests of this room."""

from __future__ import annotations

from dataclasses import replace

from detente.programs.module import Computation, Instruction, Module, Shape


def program(instructions: list[Instruction], *others: Computation, aliased: int = 0) -> Module:
    """A module whose entry returns its last instruction."""
    entry = Computation("main", tuple(instructions), len(instructions) - 1)
    return Module("m", {c.name: c for c in (entry, *others)}, "main", 0, aliased, "")


def parameter(number: int, *dims: int, dtype: str = "f32") -> Instruction:
    return Instruction("parameter", (Shape(dtype, dims),), number=number)


def appended(module: Module, new: list[Instruction]) -> Module:
    """The module with instructions behind its entry's last, all of which the root then returns: operands given as
    negative numbers count from the end of the entry."""
    entry = module.computations[module.entry]
    old = list(entry.instructions)
    for one in new:
        operands = tuple(o if o >= 0 else len(old) + o for o in one.operands)
        old.append(replace(one, operands=operands))
    results = tuple(range(len(entry.instructions), len(old)))
    shapes = entry.instructions[entry.root].results + tuple(s for k in results for s in old[k].results)
    old.append(Instruction("tuple", shapes, (entry.root, *results)))
    changed = replace(entry, instructions=tuple(old), root=len(old) - 1)
    return replace(module, computations={**module.computations, module.entry: changed})
