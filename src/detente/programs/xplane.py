"""A profile as XLA's runtimes write it (``*.xplane.pb``) to seconds by operation.

Field numbers from tensorflow/tsl ``profiler/protobuf/xplane.proto``: XSpace{planes 1}; XPlane{name 2, lines 3,
event_metadata 4, stat_metadata 5}, both maps of {key 1, value 2}; XEventMetadata{id 1, name 2};
XStatMetadata{id 1, name 2}; XLine{name 2, timestamp_ns 3, events 4}; XEvent{metadata_id 1, offset_ps 2, duration_ps 3,
stats 4}; XStat{metadata_id 1, double 2, uint64 3, int64 4, str 5, bytes 6, ref 7}.

An event belongs to an operation where it has the stat ``hlo_op``. Several threads run operations at once: what they
took is added up as **thread time**, and the union of the intervals is the time in which any of them ran. That union is
also **shared out**: an instant belongs to the innermost operation of each thread that runs one, in equal shares, which
add up to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from detente.programs.module import ProgramError
from detente.programs.wire import WireError, fields, signed, text

_OPERATION = "hlo_op"
_MODULE = "hlo_module"
_PICO = 1e-12
# (line, module, operation, begin, duration), in picoseconds
_Event = tuple[int, str, str, int, int]


@dataclass(frozen=True)
class Profile:
    """``seconds`` of thread time by (module, operation) over all of the profile, and how often each ran; ``span``: from
    the first operation to the last; ``shares``: the time in which any operation ran, shared out."""

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    runs: dict[tuple[str, str], int] = field(default_factory=dict)
    span: float = 0.0
    shares: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def busy(self) -> float:
        """Seconds in which any operation ran."""
        return sum(self.shares.values())

    def of_step(self, shared: bool = False, steps: float | None = None) -> dict[str, float]:
        """Operation -> seconds of one run of the program that took longest; what ran beside it is left out. ``steps``:
        how many were run while the profile was taken, where the capture says. A profile may begin and end within a
        step, so that each operation is divided by its own number of runs; one that runs several times in a step (in a
        loop) is multiplied again. Seconds are thread time, or what of the step's own time is ``shared`` out to it."""
        by_module: Counter[str] = Counter()
        for (module, _), took in self.seconds.items():
            by_module[module] += took  # type: ignore[assignment]  # Counter of floats
        if not by_module:
            return {}
        ((largest, _),) = by_module.most_common(1)
        whole = _whole_steps(Counter(n for (module, _), n in self.runs.items() if module == largest), steps)
        return {
            operation: took
            / max(self.runs[module, operation], 1)
            * max(1, round(self.runs[module, operation] / whole))
            for (module, operation), took in (self.shares if shared else self.seconds).items()
            if module == largest
        }


def _whole_steps(often: Counter[int], told: float | None) -> int:
    """How many steps a profile holds, by how many operations ran how often, and how many steps were ``told``. Without
    loops most run once a step; of a model whose layers are a loop most do not. A profile that was begun late holds
    fewer, and loops are what runs more often than the rest: it is the least number of runs that a twentieth of the
    operations has."""
    known = round(told) if told is not None and 1 <= told < math.inf else 0
    if known and often[known]:
        return known
    possible = [n for n in often if not known or n <= known]
    if not possible:
        return known or 1
    return min((n for n in possible if 20 * often[n] >= often.total()), default=min(possible))


def read_xplane(data: bytes) -> Profile:
    """Raises ProgramError for anything else than an XSpace."""
    try:
        planes = [list(_events(plane)) for plane in _messages(memoryview(data), 1)]
    except (WireError, ValueError, IndexError) as error:
        raise ProgramError(f"not a profile of XLA ({len(data)} bytes): {error}") from error
    events = [event for plane in planes for event in plane]
    seconds: Counter[tuple[str, str]] = Counter()
    runs: Counter[tuple[str, str]] = Counter()
    for _, module, operation, _, took in events:
        seconds[module, operation] += took * _PICO  # type: ignore[assignment]  # Counter of floats
        runs[module, operation] += 1
    first = min((begun for _, _, _, begun, _ in events), default=0)
    last = max((begun + took for _, _, _, begun, took in events), default=0)
    return Profile(dict(seconds), dict(runs), (last - first) * _PICO, _shared_out(planes))


def _shared_out(planes: Sequence[Sequence[_Event]]) -> dict[tuple[str, str], float]:
    """What each operation has of the time in which any ran."""
    borders: list[tuple[int, int, tuple[int, int], int, tuple[str, str]]] = []
    number = 0
    for at, plane in enumerate(planes):
        for line, module, operation, begun, took in plane:
            if took <= 0:
                continue
            # At one instant an end comes first; of two that begin there the longer one is the outer.
            borders.append((begun, took, (at, line), number, (module, operation)))
            borders.append((begun + took, 0, (at, line), number, (module, operation)))
            number += 1
    borders.sort(key=lambda b: (b[0], b[1] > 0, -b[1]))
    stacks: dict[tuple[int, int], list[tuple[int, tuple[str, str]]]] = {}
    found: Counter[tuple[str, str]] = Counter()
    last = borders[0][0] if borders else 0
    for instant, took, line, which, key in borders:
        if instant > last and stacks:
            part = (instant - last) * _PICO / len(stacks)
            for held in stacks.values():
                found[held[-1][1]] += part  # type: ignore[assignment]  # Counter of floats
        last = instant
        if took:
            stacks.setdefault(line, []).append((which, key))
        else:
            left = [one for one in stacks[line] if one[0] != which]
            if left:
                stacks[line] = left
            else:
                del stacks[line]
    return dict(found)


def _events(plane: memoryview) -> Iterator[_Event]:
    """The events of a plane's operations; a plane has a line for each thread."""
    names: dict[int, str] = {}
    stats: dict[int, str] = {}
    for number, value in fields(plane):
        if number in (4, 5) and not isinstance(value, int):
            for entry in _messages(value, 2):
                found = dict(fields(entry))
                ident, name = found.get(1, 0), found.get(2, b"")
                if isinstance(ident, int) and not isinstance(name, int):
                    (names if number == 4 else stats)[ident] = text(memoryview(name))
    wanted = {ident for ident, name in stats.items() if name in (_OPERATION, _MODULE)}
    if not wanted:
        return
    for place, line in enumerate(_messages(plane, 3)):
        base = 0
        rows = []
        for number, value in fields(line):
            if number == 3 and isinstance(value, int):
                base = signed(value) * 1000
            elif number == 4 and not isinstance(value, int):
                rows.append(value)
        for row in rows:
            begun = took = 0
            said: dict[str, str] = {}
            for number, value in fields(row):
                if number == 2 and isinstance(value, int):
                    begun = signed(value)
                elif number == 3 and isinstance(value, int):
                    took = signed(value)
                elif number == 4 and not isinstance(value, int):
                    stat = dict(fields(value))
                    ident = stat.get(1, 0)
                    if isinstance(ident, int) and ident in wanted:
                        said[stats[ident]] = _said(stat, stats)
            if _OPERATION in said:
                yield place, said.get(_MODULE, ""), said[_OPERATION], base + begun, took


def _said(stat: dict[int, int | memoryview], stats: dict[int, str]) -> str:
    if 5 in stat and not isinstance(stat[5], int):
        return text(stat[5])
    reference = stat.get(7)
    return stats.get(reference, "") if isinstance(reference, int) else ""


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, value in fields(data):
        if number == wanted and not isinstance(value, int):
            yield value
