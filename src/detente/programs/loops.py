"""How often a ``while`` runs, where its program says so: the counted loop that ``lax.scan`` and ``fori_loop`` make."""

from __future__ import annotations

from detente.programs.module import Computation, Instruction, Module

_TRANSPARENT = frozenset({"convert", "copy", "bitcast", "reshape"})


def trip_count(loop: Instruction, home: Computation, module: Module) -> int | None:
    """Trips of ``loop`` in ``home``; None where start, limit or step is not a constant of the program.

    Recognised: XLA's own note on an optimised loop; and where the condition compares one element of the state with
    a constant (or with an element that the body hands on unchanged), and the body adds a constant to that element.
    """
    if loop.trips is not None:
        return loop.trips
    condition, body = (module.computations[name] for name in loop.called)
    test = _element(condition, condition.root, 0)
    if test.opcode != "compare" or len(test.operands) != 2:
        return None
    left, right = (_source(condition, i) for i in test.operands)
    direction = test.target
    counter = left.number if left.opcode in ("get-tuple-element", "parameter") else None
    if counter is None:
        return None
    start = _initial(loop, home, counter)
    limit = _constant(right)
    if limit is None and right.opcode in ("get-tuple-element", "parameter"):
        limit = _initial(loop, home, right.number) if _next(body, right.number) == "same" else None
    step = _next(body, counter)
    if start is None or limit is None or not isinstance(step, int) or step == 0:
        return None
    if direction == "NE":
        return max(0, (limit - start) // step)
    if (direction in ("LT", "LE")) != (step > 0) or direction not in ("LT", "LE", "GT", "GE"):
        return None
    reach = limit - start + ((1 if step > 0 else -1) if direction in ("LE", "GE") else 0)
    return max(0, -(-reach // step))


def _source(home: Computation, at: int) -> Instruction:
    one = home.instructions[at]
    while one.opcode in _TRANSPARENT and one.operands:
        one = home.instructions[one.operands[0]]
    return one


def _constant(one: Instruction) -> int | None:
    return one.integers[0] if one.opcode == "constant" and len(one.integers) == 1 else None


def _element(home: Computation, at: int, number: int) -> Instruction:
    """Element ``number`` of the tuple at ``at``, where the tuple is written out."""
    one = home.instructions[at]
    if one.opcode == "tuple" and number < len(one.operands):
        return _source(home, one.operands[number])
    return one


def _initial(loop: Instruction, home: Computation, number: int) -> int | None:
    if len(loop.operands) == len(loop.results) and home.instructions[loop.operands[0]].opcode != "tuple":
        # StableHLO: the state is the list of operands.
        return _constant(_source(home, loop.operands[number])) if number < len(loop.operands) else None
    return _constant(_element(home, loop.operands[0], number))


def _next(body: Computation, number: int) -> int | str | None:
    """What the body does to element ``number``: the constant that it adds, ``"same"``, or None."""
    one = _element(body, body.root, number)
    if one.opcode in ("get-tuple-element", "parameter") and one.number == number:
        return "same"
    if one.opcode not in ("add", "subtract") or len(one.operands) != 2:
        return None
    left, right = (_source(body, i) for i in one.operands)
    if left.opcode == "constant":
        left, right = right, left
    step = _constant(right)
    if left.opcode not in ("get-tuple-element", "parameter") or left.number != number or step is None:
        return None
    return step if one.opcode == "add" else -step
