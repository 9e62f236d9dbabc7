"""What a value is made of in the end: constants, counts, arguments."""

from __future__ import annotations

from detente.programs.module import Computation
from detente.programs.parts import Call, Site

# What is made of nothing.
_MADE = frozenset({"constant", "iota", "rng", "rng-bit-generator", "rng-get-and-update-state"})
# So many operations back; what is made of more is data.
_FARTHEST = 1_000


def sources(site: Site, operand: int) -> frozenset[str]:
    """The opcodes of what an operand (a position in the site's computation) comes from: ``constant``, ``iota``,
    ``parameter`` for what is given to the program or handed from turn to turn of a loop; ``while`` and ``conditional``
    for what they return, and ``...`` where it is a long way. Of what a function returns it is what the function is
    given.

    >>> from detente.programs.module import Computation, Instruction, Module, Shape
    >>> from detente.programs.parts import sites
    >>> s = (Shape("s32", (4,)),)
    >>> rows = Instruction("iota", s), Instruction("constant", s), Instruction("add", s, (0, 1))
    >>> (first, second) = sites(Module("m", {"main": Computation("main", rows, 2)}, "main", 0, 0, ""))
    >>> sorted(sources(second, 0) | sources(second, 1))
    ['constant', 'iota']
    """
    found: set[str] = set()
    # The computation, the position, the call around it, and which element of a tuple is asked for.
    waiting: list[tuple[Computation, int, Call | None, int | None]] = [(site.home, operand, site.call, None)]
    seen: set[tuple[str, int, Call | None, int | None]] = set()
    while waiting:
        home, at, call, element = waiting.pop()
        if (home.name, at, call, element) in seen:
            continue
        if len(seen) >= _FARTHEST:
            return frozenset({*found, "..."})
        seen.add((home.name, at, call, element))
        one = home.instructions[at]
        if one.opcode == "parameter" and call is not None and call.instruction.opcode == "call":
            given = call.instruction.operands
            if 0 <= one.number < len(given):
                waiting.append((call.home, given[one.number], call.around, element))
                continue
        if one.opcode in _MADE or one.opcode in ("while", "conditional") or not one.operands:
            found.add(one.opcode)
        elif one.opcode == "get-tuple-element":
            waiting.append((home, one.operands[0], call, one.number))
        elif one.opcode == "tuple" and element is not None and element < len(one.operands):
            waiting.append((home, one.operands[element], call, None))
        else:
            waiting += [(home, inner, call, None) for inner in one.operands]
    return frozenset(found)
