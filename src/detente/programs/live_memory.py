"""What an optimised program holds from operation to operation, from the compiler's own assignment of buffers.

XLA gives every buffer a place in an allocation before anything runs, and orders the operations. A buffer lives from the
operation that makes it to the last one that reads it, or reads what is the same memory under another name (a tuple, a
bitcast, a loop's state). What lies at one place at one time is counted once. A loop's body stands in the order once,
in front of its loop.

Field numbers from XLA's ``xla/service/hlo.proto``: ``HloProto``, ``BufferAssignmentProto``, ``HloScheduleProto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from detente.programs.module import ProgramError
from detente.programs.wire import WireError, fields, integers, signed, text

# A value's instruction, and its place in that instruction's tuple.
Place = tuple[int, tuple[int, ...]]
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
    """Every instruction by its number, and the numbers in the order in which they run."""
    instructions: dict[int, _One] = {}
    roots: dict[int, int] = {}
    written: dict[int, list[int]] = {}
    schedule: dict[int, list[int]] = {}
    entry = -1
    for number, value in fields(module):
        if number == 6 and isinstance(value, int):
            entry = signed(value)
        elif number == 3 and not isinstance(value, int):
            mine: dict[int, _One] = {}
            ident = -1
            for n, v in fields(value):
                if n == 2 and not isinstance(v, int):
                    mine |= [_instruction(v)]
                elif n == 5 and isinstance(v, int):
                    ident = signed(v)
                elif n == 6 and isinstance(v, int):
                    roots[ident] = signed(v)
            instructions |= mine
            written[ident] = list(mine)
        elif number == 7 and not isinstance(value, int):
            schedule |= dict(_sequences(value))
    order: list[int] = []
    _walk(entry, instructions, {k: schedule.get(k, v) for k, v in written.items()}, order, set())
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


def _walk(
    computation: int,
    instructions: Mapping[int, _One],
    sequences: Mapping[int, list[int]],
    order: list[int],
    entered: set[int],
) -> None:
    """Appends what a computation runs; one that is called twice stands where it is called first."""
    if computation in entered or computation not in sequences:
        return
    entered.add(computation)
    for ident in sequences[computation]:
        if instructions[ident].opcode in _ENTERED:
            for inner in instructions[ident].called:
                _walk(inner, instructions, sequences, order, entered)
        order.append(ident)


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
    temporary = [0] * len(order)
    begins: dict[int, list[tuple[int, _Buffer]]] = {}
    for begin, end, buffer in lives:
        begins.setdefault(begin, []).append((end, buffer))
    now: list[tuple[int, _Buffer]] = []
    peak: list[_Buffer] = []
    most = 0
    for at in range(len(order)):
        now = [(end, b) for end, b in now if end >= at] + begins.get(at, [])
        temporary[at] = _union(b for _, b in now)
        if temporary[at] > most:
            most, peak = temporary[at], [b for _, b in now]
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


def _union(buffers: Iterator[_Buffer]) -> int:
    """Bytes that are covered, what lies at one place once."""
    total, last, allocation = 0, 0, -1
    for one in sorted(buffers, key=lambda b: (b.allocation, b.start)):
        if one.allocation != allocation:
            allocation, last = one.allocation, 0
        end = one.start + one.size
        total += max(0, end - max(last, one.start))
        last = max(last, end)
    return total


def _by_maker(peak: list[_Buffer], instructions: Mapping[int, _One]) -> dict[str, int]:
    """What each operation made of what is there, a place once: the first that wrote there."""
    found: dict[str, int] = {}
    seen: list[_Buffer] = []
    for buffer in sorted(peak, key=lambda b: -b.size):
        before = _union(iter(seen))
        seen.append(buffer)
        more = _union(iter(seen)) - before
        if more:
            name = instructions[buffer.made_by[0]].name
            found[name] = found.get(name, 0) + more
    return found
