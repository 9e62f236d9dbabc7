"""What two programs differ in as a whole: how they move data, donate, loop, and what they call.

Each looks at the two sides and says what is different, with the figures, A's first; None where nothing is.
"""

from __future__ import annotations

from collections import Counter

from detente.explain.side import Side
from detente.programs.hlo import BRIDGES
from detente.programs.parts import kernels, movers, transposes

# By how much more of an operation one side must have: less is what any two texts differ by.
MORE = 1.25
# Of all that a program writes, the share that is moved more on one side.
_MOVED = 0.01


def one_sided(numbers: tuple[int, int]) -> bool:
    """Whether one side has some and the other has none."""
    return (numbers[0] == 0) != (numbers[1] == 0)


def moved(a: Side, b: Side) -> str | None:
    if a.compiled is None or b.compiled is None:
        return None
    alone = [movers(side.compiled) for side in (a, b) if side.compiled is not None]
    inside = [transposes(side.compiled) for side in (a, b) if side.compiled is not None]
    ours, theirs = (alone[k][1] + inside[k][1] for k in (0, 1))
    if max(ours, theirs) < MORE * max(min(ours, theirs), 1) or abs(ours - theirs) < _MOVED * _results(a, b):
        return None
    (many, size), (fewer, less) = alone
    (across, much), (along, little) = inside
    return (
        f"{many} and {fewer} kernels that only move data, {size:,} and {less:,} bytes; {across} and {along} transposes "
        f"inside of others, {much:,} and {little:,} bytes"
    )


def _results(a: Side, b: Side) -> int:
    """Bytes that the smaller program writes, as its text has it."""
    return min(sum(s.runs * sum(r.bytes for r in s.operation.results) for s in side.sites) for side in (a, b))


def apart(a: Side, b: Side) -> str | None:
    ours, theirs = ((_written(s, "opt-barrier"), _written(s, "conditional")) for s in (a, b))
    if ours == theirs:
        return None
    said = f"{ours[0]} and {theirs[0]} barriers, {ours[1]} and {theirs[1]} conditionals"
    if a.compiled is None or b.compiled is None:
        return said
    return f"{said}; {len(kernels(a.compiled))} and {len(kernels(b.compiled))} kernels"


def _written(side: Side, opcode: str) -> int:
    """How often an operation stands in the program as it was handed over."""
    return sum(i.opcode == opcode for c in side.handed.computations.values() for i in c.instructions)


def executables(a: Side, b: Side) -> str | None:
    ours, theirs = (_built(s, "executables") for s in (a, b))
    if min(ours, theirs) < 1 or ours == theirs:
        return None
    return f"a step is {ours} and {theirs} executables"


def _built(side: Side, what: str) -> int:
    """A figure of what the compiler made; -1 where it is not known."""
    found = side.built.get(what)
    return found if isinstance(found, int) else -1


def _planned(side: Side, what: str) -> int:
    """The largest such figure of its programs; -1 where none has it."""
    facts = (p.facts.get(what) for p in side.evidence.programs if p.form == "hlo")
    return max((int(f) for f in facts if f is not None), default=-1)


def donation(a: Side, b: Side) -> str | None:
    ours, theirs = (max(_built(s, "alias_bytes"), _planned(s, "alias_bytes")) for s in (a, b))
    if min(ours, theirs) < 0 or max(ours, theirs) < MORE * max(min(ours, theirs), 1):
        return None
    return f"{ours:,} and {theirs:,} bytes of arguments whose memory results take over"


def host(a: Side, b: Side) -> str | None:
    said = []
    for side in (a, b):
        seconds = side.seconds
        if "busy" not in seconds or not seconds.get("profiled"):
            return None
        said.append(max(0.0, 1 - seconds["busy"] / seconds["profiled"]))
    if abs(said[0] - said[1]) < 0.1:
        return None
    return f"{100 * said[0]:.0f} and {100 * said[1]:.0f} % of a profiled step in which no operation runs"


def loops(a: Side, b: Side) -> str | None:
    ours, theirs = (_written(side, "while") for side in (a, b))
    return f"{ours} and {theirs} loops" if one_sided((ours, theirs)) else None


def library(a: Side, b: Side) -> str | None:
    if a.compiled is None or b.compiled is None:
        return None
    said = []
    for side in (a.compiled, b.compiled):
        calls = Counter(
            i.target
            for c in side.computations.values()
            for i in c.instructions
            if i.opcode == "custom-call" and i.target not in BRIDGES
        )
        said.append(calls)
    if not one_sided((said[0].total(), said[1].total())):
        return None  # its arm switches all of B's off, and says nothing of a few more
    words = [", ".join(f"{n} {t}" for t, n in c.most_common(3)) or "none" for c in said]
    return f"calls of libraries: {words[0]}; and {words[1]}"


def bridges_kernels(a: Side, b: Side) -> str | None:
    mine, theirs = (_built(side, "bridge_calls") for side in (a, b))
    if min(mine, theirs) < 0 or mine == theirs:
        return None
    return f"{mine} and {theirs} calls of PyTorch's products and of loops that the bridge brings"
