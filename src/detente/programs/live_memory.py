"""What an optimised program holds from operation to operation, from the compiler's own assignment of buffers.

XLA gives every buffer a place in an allocation before anything runs, and orders the operations. A buffer lives from the
operation that makes it to the last one that reads it, or reads what is the same memory under another name (a tuple, a
bitcast, a loop's state). What lies at one place at one time is counted once. A loop's body stands in the order once,
in front of its loop.

Field numbers from XLA's ``xla/service/hlo.proto``: ``HloProto``, ``BufferAssignmentProto``, ``HloScheduleProto``.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from detente.programs.module import ProgramError
from detente.programs.wire import WireError, fields, integers, signed, text

# A value's instruction, and its place in that instruction's tuple.
Place = tuple[int, tuple[int, ...]]
# An allocation, and the first byte and the one behind the last.
Slice = tuple[int, int, int]
_ENTERED = frozenset({"while", "call", "conditional"})


@dataclass(frozen=True)
class LiveMemory:
    """``held``: bytes that are there all the time (arguments, results, constants). ``operations`` in the order in which
    they run, ``temporary`` the bytes of temporaries at each, ``reserved`` what the compiler set aside for all of them:
    places do not fit without gaps. ``at_peak``: the operation that made it -> bytes, of what is there at the peak."""

    held: int
    reserved: int
    operations: tuple[str, ...]
    temporary: tuple[int, ...]
    at_peak: Mapping[str, int]

    @property
    def peak(self) -> int:
        """The position at which most is there."""
        return max(range(len(self.temporary)), key=self.temporary.__getitem__, default=0)

    @property
    def peak_bytes(self) -> int:
        return max(self.temporary, default=0)


@dataclass(frozen=True)
class _One:
    """An instruction, as far as this needs it."""

    name: str
    opcode: str
    operands: tuple[int, ...]
    called: tuple[int, ...]
    index: int  # of a get-tuple-element

    def names(self, operand: int, index: tuple[int, ...]) -> list[tuple[int, ...]] | None:
        """Under which indices it is another name for what ``operand`` has at ``index``; None where it reads it."""
        if self.opcode == "get-tuple-element":
            return [index[1:]] if index[:1] == (self.index,) else []
        if self.opcode == "tuple":
            return [(k, *index) for k, one in enumerate(self.operands) if one == operand]
        return [index] if self.opcode in ("bitcast", "opt-barrier") else None


@dataclass
class _Buffer:
    """Bytes of an allocation. ``names``: where else the value is that ``made_by`` wrote, in other computations."""

    start: int
    size: int
    allocation: int
    made_by: Place = (-1, ())
    names: list[Place] = field(default_factory=list)

    @property
    def slice(self) -> Slice:
        return self.allocation, self.start, self.start + self.size


def read_live_memory(data: bytes) -> LiveMemory | None:
    """Of a serialised HloProto; None where it holds no assignment. Raises ProgramError for anything else."""
    try:
        found = {n: v for n, v in fields(memoryview(data)) if not isinstance(v, int)}
        # A bare module names its entry in field 2, and its computations are field 3.
        if 2 in found or not {1, 3} <= found.keys():
            return None
        return _swept(found[3], *_ordered(found[1]))
    except (WireError, KeyError, IndexError) as error:
        raise ProgramError(f"no HloProto ({len(data)} bytes): {error}") from error


def _ordered(module: memoryview) -> tuple[dict[int, _One], list[int]]:
    """Every instruction that runs by itself, by its number, and the numbers in the order in which they run. What is
    inside of a kernel is not read: it holds nothing."""
    computations: dict[int, memoryview] = {}
    schedule: dict[int, list[int]] = {}
    entry = -1
    for number, value in fields(module):
        if number == 6 and isinstance(value, int):
            entry = signed(value)
        elif number == 3 and not isinstance(value, int):
            ident = next((signed(v) for n, v in fields(value) if n == 5 and isinstance(v, int)), -1)
            computations[ident] = value
        elif number == 7 and not isinstance(value, int):
            schedule |= dict(_sequences(value))
    instructions: dict[int, _One] = {}
    order: list[int] = []
    entered: set[int] = set()

    def walk(computation: int) -> None:
        """One that is called twice stands where it is called first."""
        if computation in entered or computation not in computations:
            return
        entered.add(computation)
        rows = fields(computations[computation])
        mine = dict(_instruction(v) for n, v in rows if n == 2 and not isinstance(v, int))
        instructions.update(mine)
        for ident in schedule.get(computation, mine):
            if instructions[ident].opcode in _ENTERED:
                for inner in instructions[ident].called:
                    walk(inner)
            order.append(ident)

    walk(entry)
    return instructions, order


def _instruction(data: memoryview) -> tuple[int, _One]:
    name = opcode = ""
    ident, index = -1, 0
    operands: list[int] = []
    called: list[int] = []
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 2:
            opcode = text(value)
        elif number == 35 and isinstance(value, int):
            ident = signed(value)
        elif number == 13 and isinstance(value, int):
            index = signed(value)
        elif number == 36:
            operands += integers(value)
        elif number == 38:
            called += integers(value)
    return ident, _One(name, opcode, tuple(operands), tuple(called), index)


def _sequences(data: memoryview) -> Iterator[tuple[int, list[int]]]:
    """Computation -> its instructions, of a schedule (a protobuf map)."""
    for number, row in fields(data):
        if number != 1 or isinstance(row, int):
            continue
        ident, sequence = -1, []
        for n, v in fields(row):
            if n == 1 and isinstance(v, int):
                ident = signed(v)
            elif n == 2 and not isinstance(v, int):
                sequence = [i for m, w in fields(v) if m == 1 for i in integers(w)]
        yield ident, sequence


def _swept(assignment: memoryview, instructions: Mapping[int, _One], order: list[int]) -> LiveMemory:
    position = {ident: at for at, ident in enumerate(order)}
    users: dict[int, list[int]] = {}
    for ident in order:
        for operand in dict.fromkeys(instructions[ident].operands):
            users.setdefault(operand, []).append(ident)

    def last_read(buffer: _Buffer, begin: int) -> int:
        last, waiting = begin, [buffer.made_by, *buffer.names]
        seen = set(waiting)
        while waiting:
            ident, index = waiting.pop()
            for user in users.get(ident, ()):
                found = instructions[user].names(ident, index)
                if found is None:
                    last = max(last, position[user])
                    continue
                fresh = [p for i in found if (p := (user, i)) not in seen]
                seen.update(fresh)
                waiting += fresh
        return last

    held, reserved, temporaries = _allocations(assignment)
    lives = []
    for buffer in temporaries:
        if buffer.made_by[0] in position:
            begin = position[buffer.made_by[0]]
            lives.append((begin, last_read(buffer, begin), buffer))
    begins: dict[int, list[_Buffer]] = {}
    ends: dict[int, list[_Buffer]] = {}
    for begin, end, buffer in lives:
        begins.setdefault(begin, []).append(buffer)
        ends.setdefault(end + 1, []).append(buffer)
    now, there = _Covered(), dict[int, _Buffer]()
    temporary, peak, most = [], list[_Buffer](), 0
    for at in range(len(order)):
        for buffer in ends.get(at, ()):
            now.remove(buffer.slice)
            del there[id(buffer)]
        for buffer in begins.get(at, ()):
            now.add(buffer.slice)
            there[id(buffer)] = buffer
        temporary.append(now.bytes)
        if now.bytes > most:
            most, peak = now.bytes, list(there.values())
    return LiveMemory(
        held,
        reserved,
        tuple(instructions[i].name for i in order),
        tuple(temporary),
        _by_maker(peak, instructions),
    )


def _allocations(assignment: memoryview) -> tuple[int, int, list[_Buffer]]:
    """(bytes that are held all the time, bytes set aside for temporaries, the temporaries)."""
    makers: dict[int, Place] = {}
    names: dict[int, list[Place]] = {}
    held = reserved = 0
    buffers: dict[int, _Buffer] = {}
    for number, value in fields(assignment):
        if isinstance(value, int):
            continue
        if number == 1:  # LogicalBufferProto{id 1, defined_at 3}
            whole = dict(fields(value))
            makers[_number(whole.get(1, 0))] = _place(whole.get(3))
        elif number == 2:  # BufferAlias{source_buffer_id 1, location 2}
            whole = dict(fields(value))
            names.setdefault(_number(whole.get(1, 0)), []).append(_place(whole.get(2)))
        elif number == 3:
            size, always, local, inside = _allocation(value)
            if local:
                continue
            if always:
                held += size
                continue
            reserved += size
            buffers |= inside
    for ident, buffer in buffers.items():
        buffer.made_by, buffer.names = makers.get(ident, (-1, ())), names.get(ident, [])
    return held, reserved, list(buffers.values())


def _allocation(data: memoryview) -> tuple[int, bool, bool, dict[int, _Buffer]]:
    """(size, whether it is there all the time, whether it is a thread's own, what lies in it) of a
    BufferAllocationProto{index 1, size 2, is_thread_local 3, is_entry_computation_parameter 5, maybe_live_out 7,
    assigned 9, is_constant 12}; Assigned{logical_buffer_id 1, offset 2, size 3}."""
    numbers: dict[int, int] = {}
    assigned = []
    for number, value in fields(data):
        if isinstance(value, int):
            numbers[number] = value
        elif number == 9:
            assigned.append({n: v for n, v in fields(value) if isinstance(v, int)})
    index = numbers.get(1, 0)
    inside = {row.get(1, 0): _Buffer(row.get(2, 0), row.get(3, 0), index) for row in assigned}
    always = any(numbers.get(n) for n in (5, 7, 12))
    return numbers.get(2, 0), always, bool(numbers.get(3)), inside


def _place(value: int | memoryview | None) -> Place:
    """Of a Location{shape_index 3, instruction_id 4}."""
    ident, index = -1, []
    for n, v in fields(value) if value is not None and not isinstance(value, int) else ():
        if n == 3:
            index += integers(v)
        elif n == 4 and isinstance(v, int):
            ident = signed(v)
    return ident, tuple(index)


def _number(value: int | memoryview) -> int:
    return value if isinstance(value, int) else 0


class _Covered:
    """Places of allocations, and how many bytes they cover: what lies over another is counted once. ``_overlaps``: how
    many of the sorted places reach into their next one; none nearly always, and then the sum of all is right."""

    def __init__(self) -> None:
        self._counts: dict[Slice, int] = {}
        self._sorted: list[Slice] = []
        self._sum = self._overlaps = 0

    def add(self, one: Slice) -> None:
        self._counts[one] = self._counts.get(one, 0) + 1
        if self._counts[one] > 1:
            return
        at = bisect.bisect(self._sorted, one)
        self._overlaps -= self._reaches(at - 1, at)
        self._sorted.insert(at, one)
        self._overlaps += self._reaches(at - 1, at) + self._reaches(at, at + 1)
        self._sum += one[2] - one[1]

    def remove(self, one: Slice) -> None:
        self._counts[one] -= 1
        if self._counts[one]:
            return
        del self._counts[one]
        at = bisect.bisect_left(self._sorted, one)
        self._overlaps -= self._reaches(at - 1, at) + self._reaches(at, at + 1)
        del self._sorted[at]
        self._overlaps += self._reaches(at - 1, at)
        self._sum -= one[2] - one[1]

    def _reaches(self, a: int, b: int) -> bool:
        if a < 0 or b >= len(self._sorted):
            return False
        one, other = self._sorted[a], self._sorted[b]
        return one[0] == other[0] and one[2] > other[1]

    @property
    def bytes(self) -> int:
        if not self._overlaps:
            return self._sum
        total, last, allocation = 0, 0, -1
        for which, start, end in self._sorted:
            last = last if which == allocation else 0
            allocation = which
            total += max(0, end - max(last, start))
            last = max(last, end)
        return total


def _by_maker(peak: list[_Buffer], instructions: Mapping[int, _One]) -> dict[str, int]:
    """What each operation made of what is there, a place once: its largest buffer's."""
    found: dict[str, int] = {}
    seen = _Covered()
    for buffer in sorted(peak, key=lambda b: -b.size):
        before = seen.bytes
        seen.add(buffer.slice)
        if more := seen.bytes - before:
            name = instructions[buffer.made_by[0]].name
            found[name] = found.get(name, 0) + more
    return found
