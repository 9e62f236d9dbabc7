"""The causes that may lie between two stacks, and which row stands for each set of them that is switched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from detente.explain.waterfall import Arm as Switched
from detente.explain.waterfall import Order, orders_of
from detente.records.arm import NO_ARM, Arm
from detente.stacks.factors import FACTORS, STACK, Row

RUNTIME, PROGRAM = "runtime", "program"


@dataclass(frozen=True)
class Cause:
    """A cause as stack A has it and as stack B has it: the settings of an arm of B's runtime, (factor, setting) each.

    first  it is switched before all others: what A's own runtime does can only be taken away as long as everything else
           is still A's
    guess  by which log ratio it moves a step's time, roughly
    """

    code: str
    title: str
    as_a: tuple[tuple[str, str], ...] = ()
    as_b: tuple[tuple[str, str], ...] = ()
    first: bool = False
    guess: float = 0.1


@dataclass(frozen=True)
class Path:
    """From stack ``a`` to stack ``b`` over ``causes``. The rows between them run on ``b``'s runtime.

    >>> path = between("torch-xla", "jax")
    >>> [label(path, switched) for switched in ((), ("runtime",), ("runtime", "program"))]
    ['torch-xla', 'jax[program=torch-xla]', 'jax[program=jax]']
    """

    a: Row
    b: Row
    causes: tuple[Cause, ...]

    def row(self, switched: Iterable[str]) -> Row:
        """Who stands for the causes that are switched."""
        done = frozenset(switched)
        if any(c.first and c.code not in done for c in self.causes):
            return self.a
        settings = [s for c in self.causes for s in (c.as_b if c.code in done else c.as_a)]
        return self.b[0], Arm((*self.b[1].settings, *settings))

    def orders(self, pairs: int = 6, seed: int = 0) -> tuple[Order, ...]:
        """The orders in which the causes are switched."""
        first = tuple(c.code for c in self.causes if c.first)
        rest = [c.code for c in self.causes if not c.first]
        return tuple((*first, *order) for order in orders_of(rest, pairs, seed))

    def without(self, code: str) -> Path:
        """The same, with a cause left out: its effect stays in what is left."""
        return Path(self.a, self.b, tuple(c for c in self.causes if c.code != code))


def label(path: Path, switched: Iterable[str]) -> str:
    stack, arm = path.row(switched)
    return arm.label(stack)


def between(a: str, b: str, factors: Sequence[str] = ()) -> Path:
    """The path from one stack to another: what A's runtime does around its program, then the program itself, and
    ``factors`` that A has not and B has (A's donation, fusion, ... ``off``). One stack to itself has no causes."""
    ends = ((a, NO_ARM), (b, NO_ARM))
    if a == b:
        return Path(*ends, ())
    program = FACTORS[PROGRAM]
    causes = [
        Cause(RUNTIME, "the runtime: dispatch, tracing and compiler version", first=True, guess=0.5),
        Cause(PROGRAM, program.title, ((PROGRAM, a),), ((PROGRAM, b),), guess=program.guess),
    ]
    for code in factors:
        factor = FACTORS[code]
        (setting,) = (s for s in factor.settings if s != STACK)
        causes.append(Cause(code, factor.title, ((code, setting),), guess=factor.guess))
    return Path(*ends, tuple(causes))


def switched_off(stack: str, factors: Sequence[str]) -> Path:
    """From a stack with factors off to the stack as it is: what each of them is worth there."""
    settings = {code: FACTORS[code].settings[0] for code in factors}
    causes = tuple(
        Cause(code, FACTORS[code].title, ((code, s),), guess=FACTORS[code].guess)
        for code, s in settings.items()
    )
    return Path((stack, Arm(tuple(settings.items()))), (stack, NO_ARM), causes)


def rows_between(path: Path, orders: Iterable[Order]) -> dict[Switched, Row]:
    """Every set of switched causes that an order passes through -> its row."""
    found = {frozenset(order[:k]) for order in orders for k in range(len(order) + 1)}
    return {switched: path.row(switched) for switched in sorted(found, key=lambda s: (len(s), sorted(s)))}
