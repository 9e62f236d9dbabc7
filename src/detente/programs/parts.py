"""A program's operations by the part of the model that they belong to.

A part is a module's path and a direction. What an operation is part of is known by its **name** (its metadata), or by
**flow**: it feeds one part alone, or is made of one part alone (a nameless constant, a reshape between two named
operations); what only moves data, a copy, belongs to its first reader. Of the rest the next consumer is a **guess**,
which is listed and does not count as covered.

Calls are expanded: a function that two modules call is part of both. Names inside of a function are relative to the
place where it is called, so that they are put together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from detente.programs.calls import Budget, check_depth
from detente.programs.count import ENTERED, PLUMBING, live
from detente.programs.loops import trip_count
from detente.programs.module import Computation, Instruction, Module, Shape
from detente.programs.products import is_product, product_flops
from detente.programs.scope import ROOT, Direction, Scope, is_whole, read_scope

How = Literal["name", "flow", "guess", "none"]
# A part, and how it is known: what stands around a computation that is called.
Known = tuple["Part", How]
# Passes over a computation until nothing new is known; a chain of nameless operations takes one.
_PASSES = 8


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """``path`` is dotted; empty for what lies in no module (a loss that is a function, an update)."""

    path: str
    direction: Direction


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The call of a function, in ``home``, and the call that this one stands in; each is one place of the program."""

    instruction: Instruction
    home: Computation
    around: Call | None


@dataclass(frozen=True, slots=True)
class Site:
    """One operation where it runs: ``runs`` times in a step, of which ``counted`` says whether it is known; within a
    loop whose trips the program does not say it is the least. ``call``: what it stands in; None in the entry, and in
    the body of a loop."""

    operation: Instruction
    home: Computation
    part: Part
    how: How
    runs: int
    counted: bool = True
    call: Call | None = None


@dataclass
class Facts:
    """What a part holds, of a step: ``operations`` by number and dtype, ``flops`` of products and ``bytes`` of results.
    As written, a loop's body once: ``opcodes``, how many are ``known`` in which way, and ``own``, the operations that
    are known by name, by opcode and results; layers are equal where these are, whoever of them a shared constant is
    counted with."""

    operations: int = 0
    flops: int = 0
    bytes: int = 0
    opcodes: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    known: Counter[How] = field(default_factory=Counter)
    own: Counter[tuple[str, tuple[Shape, ...]]] = field(default_factory=Counter)


def sites(module: Module) -> tuple[Site, ...]:
    """Every live operation of a program with its part; parameters, constants and tuples are none."""
    entry = module.computations[module.entry]
    return tuple(_Walk(module, _outermost(entry)).sites(entry, None))


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a program runs as one: a fusion, a call of a library, an operation of its own. ``shared``: it holds
    operations of more than one part; it is that of its largest product, which is what takes the time, and of its result
    where it has none (a weight's gradient with the update behind it is the gradient's). A step ``runs`` it so often; 1
    in a loop whose trips are not known."""

    name: str
    part: Part
    how: How
    shared: bool
    runs: int = 1


# What only moves data.
MOVES = frozenset(
    {
        "reshape", "transpose", "copy", "broadcast", "bitcast", "bitcast-convert", "dynamic-reshape", "copy-start",
        "copy-done",
    }
)  # fmt: skip
# Written in a program and run by nobody.
FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional"}
)


def kernels(module: Module) -> tuple[Kernel, ...]:
    """The kernels of an optimised program, or the operators of one that was traced, each with its part."""
    entry = module.computations[module.entry]
    return tuple(_Walk(module, _outermost(entry)).kernels(entry, None))


def movers(module: Module) -> tuple[int, int]:
    """(how many kernels of an optimised program do nothing but move data, bytes that a step writes by them). A loop's
    body counts as often as it runs, where that is known."""
    count = size = 0
    for one, runs in _run(module):
        if one.opcode not in FREE and one.opcode != "call" and _moves_alone(module, one):
            count += runs
            size += runs * sum(s.bytes for s in one.results)
    return count, size


def transposes(module: Module) -> tuple[int, int]:
    """(how many transposes stand inside of kernels that compute as well, bytes of their results in a step). A CPU's
    compiler takes a transpose into its neighbour, where it is no kernel, and each read or write goes across rows."""
    count = size = 0
    for one, runs in _run(module):
        if one.opcode != "fusion" or _moves_alone(module, one):
            continue
        for inside in _held(module, one):
            if inside.opcode == "transpose":
                count += runs
                size += runs * sum(s.bytes for s in inside.results)
    return count, size


def _run(module: Module) -> Iterator[tuple[Instruction, int]]:
    """Every instruction that runs by itself, with how often a step runs it."""
    for home, runs in running(module):
        for at in live(home):
            yield home.instructions[at], runs


def _held(module: Module, one: Instruction) -> Iterator[Instruction]:
    """What a fusion computes with."""
    for home in (module.computations[name] for name in one.called):
        for at in live(home):
            yield home.instructions[at]


def running(module: Module) -> list[tuple[Computation, int]]:
    """The computations whose instructions are kernels (the entry, what it calls, and what loops and branches run), each
    once, with how often a step runs it; 1 a loop whose trips are not known."""
    found: dict[str, tuple[Computation, int]] = {}
    waiting = [(module.entry, 1)]
    while waiting:
        name, runs = waiting.pop()
        if name in found:
            continue
        home = module.computations[name]
        found[name] = home, runs
        for at in live(home):
            one = home.instructions[at]
            if one.opcode in ("while", "call", "conditional"):
                trips = trip_count(one, home, module) if one.opcode == "while" else 1
                waiting += [(inner, runs * (trips or 1)) for inner in one.called]
    return list(found.values())


def _moves_alone(module: Module, one: Instruction) -> bool:
    if one.opcode != "fusion":
        return one.opcode in MOVES and one.opcode != "broadcast"
    inside = [held.opcode for held in _held(module, one) if held.opcode not in FREE]
    return bool(inside) and all(opcode in MOVES for opcode in inside) and set(inside) != {"broadcast"}


def grouped(found: Sequence[Site], groups: Mapping[str, Sequence[str]]) -> tuple[Kernel, ...]:
    """The kernels that a compiler made of operations: ``groups`` has the names of what each holds, its result last. One
    that holds nothing of this program is of no part."""
    by_name = {site.operation.name: site for site in found}
    made = []
    for name, operations in groups.items():
        held = [by_name[o] for o in operations if o in by_name]
        named = list(dict.fromkeys(site.part for site in held if site.how == "name"))
        part, how = (held[-1].part, held[-1].how) if held else (Part("", "forward"), "none")
        if how != "name" and len(named) == 1:
            part, how = named[0], "name"
        made.append(Kernel(name, part, how, len(named) > 1))
    return tuple(made)


def parts(found: Sequence[Site]) -> dict[Part, Facts]:
    """Facts by part, in the order in which the program first meets each."""
    table: dict[Part, Facts] = {}
    for site in found:
        facts = table.setdefault(site.part, Facts())
        one = site.operation
        facts.operations += site.runs
        facts.bytes += site.runs * sum(s.bytes for s in one.results)
        facts.opcodes[one.opcode] += 1
        facts.dtypes[one.shape.dtype] += site.runs
        facts.known[site.how] += 1
        if site.how == "name":
            facts.own[one.opcode, one.results] += 1
        if is_product(one):
            facts.flops += site.runs * product_flops(one, site.home)
    return table


def coverage(found: Sequence[Site]) -> dict[How, float]:
    """The share of operations whose part is known in each way."""
    known = Counter(site.how for site in found)
    return {how: known[how] / len(found) if found else 0.0 for how in ("name", "flow", "guess", "none")}


def _outermost(entry: Computation) -> str:
    """The function that all of the program is in (``jit(step)/``). A name that begins with it is whole wherever it
    stands, as in a fusion; any other is relative to the call around it."""
    begun = Counter(one.origin.partition("/")[0] for one in entry.instructions if "/" in one.origin)
    return f"{begun.most_common(1)[0][0]}/" if begun else ""


class _Walk:
    """A walk over a program, calls expanded. Both walks are given what stands around a computation: its part, the
    computations that it is called from, how often it runs in a step, and whether that is known."""

    def __init__(self, module: Module, outermost: str) -> None:
        self.module, self.outermost, self.budget = module, outermost, Budget()

    def sites(
        self,
        home: Computation,
        around: Known | None,
        runs: int = 1,
        above: tuple[str, ...] = (),
        counted: bool = True,
        call: Call | None = None,
    ) -> Iterator[Site]:
        alive, placed = self._enter(home, around, above)
        inner = (*above, home.name)
        for at, one in enumerate(home.instructions):
            if at not in alive:
                continue
            part, how = placed[at]
            if one.opcode == "while":
                trips = trip_count(one, home, self.module)
                known = counted and trips is not None
                for body in self._called(one):
                    yield from self.sites(body, placed[at], runs * (trips or 1), inner, known)
            elif one.opcode in ENTERED:
                for body in self._called(one):
                    here = Call(one, home, call)
                    yield from self.sites(body, placed[at], runs, inner, counted, here)
            if one.opcode not in PLUMBING and one.opcode not in ("call", "fusion", "while"):
                yield Site(one, home, part, how, runs, counted, call)

    def kernels(
        self, home: Computation, around: Known | None, runs: int = 1, above: tuple[str, ...] = ()
    ) -> Iterator[Kernel]:
        alive, placed = self._enter(home, around, above)
        inner = (*above, home.name)
        for at in sorted(alive):
            one, (part, how) = home.instructions[at], placed[at]
            if one.opcode in ("while", "conditional"):
                trips = trip_count(one, home, self.module) if one.opcode == "while" else 1
                for body in self._called(one):
                    yield from self.kernels(body, placed[at], runs * (trips or 1), inner)
            if one.opcode in FREE:
                continue
            held: set[Part] = set()
            largest = 0
            if one.opcode in ("fusion", "call"):
                for body in self._called(one):
                    for site in self.sites(body, placed[at], 1, inner):
                        if site.how != "name":
                            continue
                        held.add(site.part)
                        size = product_flops(site.operation, site.home) if is_product(site.operation) else 0
                        if size > largest:
                            largest, part, how = size, site.part, "name"
            if how != "name" and len(held) == 1:
                # The kernel has no name of its own, but all that it holds is of one part.
                part, how = held.pop(), "name"
            yield Kernel(one.name, part, how, len(held) > 1, runs)

    def _enter(
        self, home: Computation, around: Known | None, above: tuple[str, ...]
    ) -> tuple[set[int], list[Known]]:
        """What lives in a computation, and the part of each of its operations."""
        check_depth(home, above)
        self.budget.spend(1 + len(home.instructions))
        alive = live(home)
        return alive, _placed(self.module, home, alive, around, self.outermost)

    def _called(self, one: Instruction) -> list[Computation]:
        return [self.module.computations[name] for name in one.called]


def _placed(
    module: Module, home: Computation, alive: set[int], around: Known | None, outermost: str
) -> list[Known]:
    """The part of each instruction, and how it is known. What has no name of its own inside of a call is the call's,
    and known no better than that."""
    whole = home.instructions
    found: list[Known | None] = [_by_name(one, around, outermost) for one in whole]
    for at, one in enumerate(whole):
        if one.opcode == "fusion" and at in alive:
            for operand, reader in _read_inside(module, one, around, outermost):
                found[operand] = found[operand] or reader
    users: list[list[int]] = [[] for _ in whole]
    for at, one in enumerate(whole):
        if at in alive:
            for operand in one.operands:
                users[operand].append(at)
    for _ in range(_PASSES):
        before = sum(f is not None for f in found)
        for at in reversed(range(len(whole))):
            found[at] = found[at] or _one_of([found[u] for u in users[at]])
        for at, one in enumerate(whole):
            made_of = [found[o] for o in one.operands if whole[o].opcode not in ("constant", "parameter")]
            found[at] = found[at] or _one_of(made_of)
        if sum(f is not None for f in found) == before:
            break
    # What only moves data is its reader's, or its maker's where nobody knows the reader.
    for at in reversed(range(len(whole))):
        if found[at] is None and whole[at].opcode in MOVES:
            around_it = [n for k in (*users[at], *whole[at].operands) if (n := found[k]) is not None]
            found[at] = _flowed(around_it[:1]) if around_it else None
    for at in reversed(range(len(whole))):
        if found[at] is None and users[at] and (nearest := found[min(users[at])]) is not None:
            found[at] = (nearest[0], "guess")
    nowhere: Known = (Part("", "forward"), "none")
    if around is not None:
        nowhere = (around[0], "flow" if around[1] == "name" else around[1])
    return [f or nowhere for f in found]


def _read_inside(
    module: Module, fusion: Instruction, around: Known | None, outermost: str
) -> Iterator[tuple[int, Known]]:
    """(operand, the part of what reads it first) of a fusion. A compiler that rewrites a convolution leaves its name to
    the transpose behind it, and fuses that into the update that reads the gradient."""
    for name in fusion.called:
        inside = module.computations[name].instructions
        numbers = {at: one.number for at, one in enumerate(inside) if one.opcode == "parameter"}
        told: set[int] = set()
        for one in inside:
            if one.opcode not in MOVES:
                continue
            for operand in one.operands:
                number = numbers.get(operand)
                if number is None or number in told or number >= len(fusion.operands):
                    continue
                if (part := _by_name(one, around, outermost)) is not None:
                    told.add(number)
                    yield fusion.operands[number], _flowed([part])


def _by_name(one: Instruction, around: Known | None, outermost: str) -> Known | None:
    scope = read_scope(one.origin)
    if scope is None:
        return None
    whole = bool(outermost) and one.origin.startswith(outermost)
    part = _joined(scope, None if whole or around is None else around[0])
    if not part.path and part.direction != "optimizer":
        return None
    # A name that is put together with a guess is one.
    guessed = around is not None and around[1] == "guess" and part.path != scope.path
    return part, "guess" if guessed else "name"


def _joined(scope: Scope, around: Part | None) -> Part:
    if around is None:
        return Part(scope.path, scope.direction)
    if around.path == ROOT:
        around = Part("", around.direction)
    direction = around.direction if scope.direction == "forward" else scope.direction
    if not scope.path or scope.path == around.path or is_whole(scope.path, around.path):
        return Part(scope.path or around.path, direction)
    return Part(f"{around.path}.{scope.path}" if around.path else scope.path, direction)


def _one_of(neighbours: Sequence[Known | None]) -> Known | None:
    """The part that all neighbours are of."""
    known = [n for n in neighbours if n is not None]
    if not known or len(known) < len(neighbours):
        return None
    return _flowed(known) if len({part for part, _ in known}) == 1 else None


def _flowed(neighbours: Sequence[Known]) -> Known:
    """The part of the first, known by dataflow from all of them, and so no better than the worst of them."""
    return neighbours[0][0], "guess" if any(how == "guess" for _, how in neighbours) else "flow"
