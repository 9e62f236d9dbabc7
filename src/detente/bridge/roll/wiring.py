"""How the iterations of a candidate loop hang together: each operand is local, a carry, stacked or invariant.

All numbers are value numbers of a ``Tape``. A run of ``count`` blocks of ``period`` nodes is seen as a matrix with
a row per iteration; a column is one operand slot, one value or one node of the block. A column is

- *local* when every row reads the same value of its own block,
- a *carry* when every row reads the same value of the block ``lag`` rows before, and the first ``lag`` rows read
  values from before the run (their initial values),
- *external* when every row reads a value from before the run: *invariant* when it is one value, else *stacked*.

Anything else is no loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detente.bridge.roll.tape import NOWHERE, Tape


@dataclass(frozen=True)
class Wiring:
    """A run that is a loop. Columns of values count the results of the block's nodes in order."""

    start: int  # position of the first node
    period: int  # nodes in the block
    count: int  # iterations
    reads: tuple[
        tuple[str, int, int], ...
    ]  # per slot: ("local", column, 0), ("carry", column, lag), ("external", ..)
    sources: np.ndarray  # (count, slots) what each slot of each iteration reads
    ys: tuple[int, ...]  # value columns that nodes after the run read from more than the last carry
    draws: int  # random ordinals of a row minus those of the row before; 0 when the block draws nothing
    carries: int
    carry_bytes: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count

    @property
    def saved(self) -> int:
        return (self.count - 1) * self.period

    @property
    def rank(self) -> tuple[int, ...]:
        """Smaller is better: most nodes saved, then fewest stacked results, carries and carried bytes. This puts
        the border of a block where the stream between layers is thinnest. The rest makes the order total."""
        return (-self.saved, len(self.ys), self.carries, self.carry_bytes, self.period, self.start)


def wire(tape: Tape, start: int, period: int, count: int) -> Wiring | int:
    """The wiring of ``count`` blocks of ``period`` nodes from position ``start`` (their tokens are equal), or the
    number of leading iterations, less than ``count``, beyond which the pattern surely breaks (0 or 1: no loop)."""
    stop = start + period * count
    first_value, first_slot = int(tape.value[start]), int(tape.slot[start])
    values = int(tape.value[start + period]) - first_value
    slots = int(tape.slot[start + period]) - first_slot
    sources = tape.source[first_slot : first_slot + slots * count].reshape(count, slots)
    own = first_value + values * np.arange(count)[:, None]  # first value of each row's own block

    draws, steady = _draws(tape.draw[start:stop].reshape(count, period))
    steady = min(steady, _regions(tape.region[start:stop].reshape(count, period, -1), start))
    if steady < count:
        return steady

    external = sources < first_value
    relative = sources - own
    # the last row says what a column is: deep carries still read initial values in the first rows
    lag = np.where(external[-1], 0, np.maximum(0, -(relative[-1] // values)))
    warming = np.arange(count)[:, None] < lag
    fits = np.where(external[-1] | warming, external, relative == relative[-1])
    fits &= tape.aval[sources] == tape.aval[sources[-1]]
    if not fits.all():
        return _breaks(external, relative, tape.aval[sources], values)

    carry_inits: dict[tuple[int, ...], int] = {}  # (column, initial values ...) -> bytes
    reads: list[tuple[str, int, int]] = []
    for k in range(slots):
        if external[-1, k]:
            reads.append(("external", 0, 0))
        elif lag[k] == 0:
            reads.append(("local", int(relative[-1, k]), 0))
        else:
            depth = int(lag[k])
            column = int(relative[-1, k]) + depth * values
            reads.append(("carry", column, depth))
            for kept in range(1, depth + 1):
                inits = sources[depth - kept : depth, k].tolist()
                carry_inits[(column, *inits)] = int(tape.size[first_value + column])
    carried = {key[0] for key in carry_inits}

    outside = tape.last_use[first_value : first_value + values * count].reshape(count, values) >= stop
    only_carry = np.isin(np.arange(values), list(carried))
    ys = np.flatnonzero(outside[:-1].any(axis=0) | (outside[-1] & ~only_carry))
    return Wiring(
        start=start,
        period=period,
        count=count,
        reads=tuple(reads),
        sources=sources,
        ys=tuple(ys.tolist()),
        draws=draws,
        carries=len(carry_inits),
        carry_bytes=sum(carry_inits.values()),
    )


def _draws(draw: np.ndarray) -> tuple[int, int]:
    """The stride of the random ordinals and the number of leading rows that keep it. It must be one number for the
    whole block: iteration k draws ``ordinal + k * stride``, so that masks are those of the unrolled program."""
    drawing = draw[0] != NOWHERE
    if not drawing.any():
        return 0, len(draw)
    step = np.diff(draw[:, drawing], axis=0)
    wrong = (step != step[0, 0]).any(axis=1)
    return int(step[0, 0]), int(np.argmax(wrong)) + 1 if wrong.any() else len(draw)


def _regions(region: np.ndarray, start: int) -> int:
    """Leading rows in which checkpoint regions lie alike and none crosses the border of an iteration. A region
    around the whole run is no obstacle: it then holds the loop."""
    count, period, depth = region.shape
    own = start + period * np.arange(count)[:, None]
    good = count
    for level in range(depth):
        here = region[:, :, level]
        if (here == here[0, 0]).all():
            continue
        relative = np.where(here == NOWHERE, NOWHERE, here - own)
        crosses = (here != NOWHERE) & (here < own)
        wrong = (crosses | (relative != relative[0])).any(axis=1)
        good = min(good, int(np.argmax(wrong)) if wrong.any() else count)
    return good


def _breaks(external: np.ndarray, relative: np.ndarray, aval: np.ndarray, values: int) -> int:
    """Leading rows whose operands follow the pattern that the second row sets (a deeper lag than one does not
    show there; such a run is then searched in smaller pieces, which costs loops and never correctness)."""
    count = len(relative)
    carry = (relative[1] < 0) & (relative[1] >= -values) & ~external[1]
    fits = np.where(external[1], external, relative == relative[1])
    fits[0] = np.where(carry | external[1], external[0], relative[0] == relative[1])
    fits &= aval == aval[1]
    wrong = ~fits.all(axis=1)
    return min(count - 1, int(np.argmax(wrong))) if wrong.any() else count - 1
