"""What the instructions of code ask for: names, fields of patterns, tables of names.

Read without running any; whether a name is found where the code looks for it is another question.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, takewhile

_ANY = frozenset(
    {"vars", "__dict__", "attrgetter", "__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__"}
)
# What looks a name up among the globals of a module, or binds it there; a class's body loads by name.
_OF_GLOBALS = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}
)
_STORES_GLOBAL = dis.opmap["STORE_GLOBAL"]
# Tables of all names of a module, or of all modules, and what takes one of them out by a string.
_GLOBALS = frozenset({"globals", "__globals__", "f_globals"})
_MODULES = frozenset({"modules", "import_module", "__import__"})
_OF_A_TABLE = frozenset({"get", "__getitem__", "pop", "setdefault"})
# An object's own class, what tensors' are called, and what holds one against the other.
_OWN_CLASS = frozenset({"type", "__class__"})
_OF_TENSORS = frozenset({"Tensor", "Parameter"})
_HOLDS = ("IS_OP", "COMPARE_OP", "CONTAINS_OP")
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_ENDS = ("STORE_", "POP_TOP", "RETURN_")  # where an expression's value goes
# How a key is loaded that stands in the code, or in a global of it.
_SAYS = ("LOAD_CONST", "LOAD_GLOBAL", "LOAD_NAME")
_OF_WHAT_IS_LOADED = ("LOAD_ATTR", "LOAD_METHOD")


@cache
def makes_names(code: types.CodeType) -> bool:
    """Whether it asks by names that do not stand in it. ``getattr(self, "beta", 1.0)`` has its name there."""
    if not _ANY.isdisjoint(code.co_names):
        return True
    if "getattr" not in code.co_names:
        return False
    steps = _steps(code)
    return any(
        step.argval == "getattr" and not _by_a_constant(steps[i + 1 :])
        for i, step in enumerate(steps)
        if step.opcode in dis.hasname
    )


def _by_a_constant(steps: Sequence[dis.Instruction]) -> bool:
    """Whether the call that begins here is ``getattr(object, "name")``, or that with a default, and all of it plain."""
    loads = list(takewhile(lambda step: step.opname.startswith("LOAD_"), steps))
    values = [i for i, step in enumerate(loads) if not step.opname.startswith(_OF_WHAT_IS_LOADED)]
    if len(loads) == len(steps) or steps[len(loads)].opname not in ("PRECALL", "CALL") or len(values) < 2:
        return False
    name, after = loads[values[1]], steps[values[1] + 1]
    said = name.opname == "LOAD_CONST" and isinstance(name.argval, str)
    return said and not after.opname.startswith(_OF_WHAT_IS_LOADED)  # "".join(...)


@cache
def holds_classes(code: types.CodeType) -> int:
    """The line on which it holds an object's own class against a tensor's (``type(x) is torch.Tensor``), or that one's
    name; 0 where there is none. Told by what one expression loads, up to a jump or where its value goes: a class that
    a name or a table of the user's holds is not seen."""
    said: set[str] = set()
    for step in _steps(code):
        if step.opcode in _JUMPS or step.opname.startswith(_ENDS):
            said = set()
            continue
        if step.opcode in dis.hasname and step.argval in _OWN_CLASS:
            said.add("its own")
        values = step.argval if isinstance(step.argval, tuple | frozenset) else (step.argval,)
        if any(isinstance(value, str) and value in _OF_TENSORS for value in values):
            said.add("a tensor's")
        if step.opname in _HOLDS and len(said) == 2:
            return (step.positions.lineno if step.positions else None) or code.co_firstlineno
    return 0


def asks_globals(code: types.CodeType) -> bool:
    """Whether it may ask for any name of its module (``globals()["rate"]``)."""
    return not _GLOBALS.isdisjoint(code.co_names)


def asks_modules(code: types.CodeType) -> bool:
    """Whether it may ask for any module (``sys.modules["settings"]``). ``model.modules()`` is none of it."""
    asked = _MODULES.intersection(code.co_names)
    return bool(asked - {"modules"}) or (bool(asked) and "sys" in code.co_names)


@cache
def makes_keys(code: types.CodeType) -> str:
    """The table of all names, or of all modules, that it asks by a string which it makes itself; empty where there is
    none. ``globals()["rate"]`` and ``sys.modules[__name__]`` say what they ask for. What is imported by a made-up name
    is seen when it runs."""
    if not (asks_globals(code) or asks_modules(code)):
        return ""
    steps = [step for step in _steps(code) if step.opname != "PRECALL"]
    for i, step in enumerate(steps):
        if step.opcode not in dis.hasname:
            continue
        after = steps[i + 1 :]
        if step.argval == "globals" and after and after[0].opname == "CALL":
            after = after[1:]
        elif step.argval not in _GLOBALS and (
            step.argval != "modules" or not i or steps[i - 1].argval != "sys"
        ):
            continue
        if not _key_says(after):
            return "sys.modules" if step.argval == "modules" else str(step.argval)
    return ""


def _key_says(steps: Sequence[dis.Instruction]) -> bool:
    """Whether the table that was just loaded is asked for a key that stands in the code, or in a global."""
    if steps and steps[0].opname == "CONTAINS_OP":
        return True
    if len(steps) < 3:
        return False
    first, second, third = steps[:3]
    if first.opcode in dis.hasname and first.argval in _OF_A_TABLE:
        return second.opname in _SAYS and not third.opname.startswith(_OF_WHAT_IS_LOADED)
    return first.opname in _SAYS and second.opname.startswith("BINARY_")


@cache
def matches_by_place(code: types.CodeType) -> bool:
    """``case Config(rate, gain)``: the class says in ``__match_args__`` which attributes those are."""
    return any(step.opname == "MATCH_CLASS" and step.arg for step in dis.get_instructions(code))


@cache
def matched(code: types.CodeType) -> frozenset[str]:
    """The names in its patterns, which stand in tuples: ``case Config(rate=r)``, ``case {"rate": r}``."""
    before = (one for one, step in pairwise(_steps(code)) if step.opname in ("MATCH_CLASS", "MATCH_KEYS"))
    return frozenset(
        name
        for one in before
        if one.opname == "LOAD_CONST" and isinstance(one.argval, tuple)
        for name in one.argval
        if isinstance(name, str)
    )


@cache
def loaded(code: types.CodeType) -> frozenset[str]:
    """The names that code asks for; ``self.took = ...`` asks for nothing."""
    return frozenset(
        step.argval
        for step in dis.get_instructions(code)
        if step.opcode in dis.hasname and not step.opname.startswith(("STORE_", "DELETE_"))
    )


@cache
def globals_in(code: types.CodeType) -> frozenset[str]:
    """The names that code, or a function that it makes, may find among the globals of its module. An attribute is none
    (``outputs.loss``): in a script whose loop says ``loss = step(batch)`` every step would be another program. All of
    its names, where it may ask for the module itself."""
    found = (
        code.co_names
        if asks_globals(code) or asks_modules(code)
        else (step.argval for step in dis.get_instructions(code) if step.opname in _OF_GLOBALS)
    )
    inner = (globals_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(found).union(*inner)


def stored_globals(code: types.CodeType) -> frozenset[str]:
    """The globals that code binds anew (``global calls; calls += 1``)."""
    if _STORES_GLOBAL not in code.co_code[::2]:
        return frozenset()
    return frozenset(step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL")


def strings_in(code: types.CodeType) -> Iterator[str]:
    """The strings in it, and in the functions that it makes."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from strings_in(constant)


def _steps(code: types.CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname not in ("PUSH_NULL", "CACHE")]
