"""The causes that may lie between two stacks, and which row stands for each set of them that is switched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from detente.explain.waterfall import Arm as Switched
from detente.explain.waterfall import Order, orders_of
from detente.records.arm import NO_ARM, Arm
from detente.stacks.factors import FACTORS, STACK, Facts, Row

RUNTIME, PROGRAM, KERNELS, TRACING = "runtime", "program", "torch-kernels", "tracing"
COMPILER = "compiler"
# The release of XLA is switched by itself.
_OF_ONE_AGE = "the runtime: dispatch, and how its compiler is set"


@dataclass(frozen=True)
class Cause:
    """A cause as stack A has it and as stack B has it: the settings of an arm of B's runtime, (factor, setting) each.

    own     of one that A's own runtime can switch: the settings of an arm of A's with it switched
    first   it is switched before all others: what A's own runtime does can only be taken away as long as everything
            else is still A's
    before  the cause that it is switched before: only what runs A's program can be set to it, and what stands behind
            that cause has it as B has it
    within  the cause whose bar holds its effect where it has none of its own; empty: the one it is switched before
    guess   by which log ratio it moves a step's time, roughly
    """

    code: str
    title: str
    as_a: tuple[tuple[str, str], ...] = ()
    as_b: tuple[tuple[str, str], ...] = ()
    own: tuple[tuple[str, str], ...] = ()
    first: bool = False
    before: str = ""
    within: str = ""
    guess: float = 0.1

    @property
    def otherwise(self) -> str:
        """Where its effect is when it has no bar, to stand behind the reason; empty where that is what is left."""
        return f"; it is part of {within}" if (within := self.within or self.before) else ""


@dataclass(frozen=True)
class Path:
    """From stack ``a`` to stack ``b`` over ``causes``. The rows between them run on ``b``'s runtime. ``stand_in``: the
    stack that runs A's program on B's runtime, as long as the program is A's; empty where B runs it under an arm.
    ``left``: (cause, why it cannot be switched between these two), by A's capture; its effect is part of what is left.

    >>> path = known_path("torch-xla", "jax")
    >>> order = ("tracing", "runtime", "compiler", "program")
    >>> for k in range(5):
    ...     print(label(path, order[:k]))
    torch-xla
    torch-xla[tracing=off]
    jax[compiler=0.7.1+program=torch-xla]
    jax[program=torch-xla]
    jax[program=jax]
    """

    a: Row
    b: Row
    causes: tuple[Cause, ...]
    stand_in: str = ""
    left: tuple[tuple[str, str], ...] = ()

    def row(self, switched: Iterable[str]) -> Row:
        """Who stands for the causes that are switched."""
        done = frozenset(switched)
        if any(c.first and c.code not in done for c in self.causes):
            own = tuple(s for c in self.causes if c.code in done for s in c.own)
            return (self.a[0], Arm((*self.a[1].settings, *own))) if own else self.a
        standing = [c for c in self.causes if not c.before or c.before not in done]
        settings = [s for c in standing for s in (c.as_b if c.code in done else c.as_a)]
        stood_for = self.stand_in and any(c.code == PROGRAM and c.code not in done for c in self.causes)
        return self.stand_in if stood_for else self.b[0], Arm((*self.b[1].settings, *settings))

    def orders(self, pairs: int = 6, seed: int = 0) -> tuple[Order, ...]:
        """The orders in which the causes are switched."""
        first = tuple(c.code for c in self.causes if c.first)
        rest = [c.code for c in self.causes if not c.first]
        bound = [(c.code, c.before) for c in self.causes if c.before in rest]
        return tuple(
            (*first, *order)
            for order in orders_of(rest, pairs, seed)
            if all(order.index(early) < order.index(late) for early, late in bound)
        )

    def falls_with(self, code: str) -> tuple[str, ...]:
        """The cause, and which others cannot be switched without it: what is switched before it, and without A's
        program on B's runtime what A's own runtime does, too: everything would be."""
        return tuple(
            c.code for c in self.causes if code in (c.code, c.before) or (c.first and code == PROGRAM)
        )

    def without(self, *codes: str) -> Path:
        """The same, with causes left out, and what is switched before them: their effect stays in what is left."""
        return replace(
            self, causes=tuple(c for c in self.causes if c.code not in codes and c.before not in codes)
        )


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
    return Path(*ends, (*causes, *_switched(factors)))


# The stack that runs a torch module's own program on XLA.
BRIDGE = "detente"
_TORCH = ("torch-eager", "torch-eager-default", "torch-compile", "torch-compile-model")
# What a stack has not, and XLA's have: the factors that can be switched off there.
_LACKS: dict[str, tuple[str, ...]] = {"torch-eager": ("fusion",), "torch-eager-default": ("fusion",)}
# (to the bridge itself, the bridge calls PyTorch's products) -> what the bar is called.
_RUNTIMES = {
    (False, True): "PyTorch's runtime, or one program of XLA's that calls PyTorch's products",
    (True, True): "PyTorch's runtime, or the bridge's: one program of XLA's, and its calls",
    (False, False): "PyTorch's runtime, or one program of XLA's",
    (True, False): "PyTorch's runtime, or the bridge's: one program of XLA's",
}
# Between the bridge and JAX: whose products, then whose text.
_FROM_THE_BRIDGE = (
    Cause(PROGRAM, "the text of the program", guess=0.1),
    Cause(
        KERNELS,
        FACTORS[KERNELS].title,
        as_b=((KERNELS, "off"),),
        before=PROGRAM,
        guess=FACTORS[KERNELS].guess,
    ),
)


def known_path(a: str, b: str, products: bool = True) -> Path:
    """The path from one stack to another over the causes that can be switched between these two.

    PyTorch's programs are run on XLA by the bridge, which calls PyTorch's products: from PyTorch to JAX the bridge
    stands between them, its kernels are switched off, and the text of the program is what is left to switch. Without
    ``products`` (of a loss or a gradient alone) the bridge calls none, and has no kernels to switch off. From one form
    of JAX to another it is the loop over layers.

    >>> path = known_path("torch-eager", "jax")
    >>> order = ("runtime", "torch-kernels", "program", "fusion")
    >>> for k in range(5):
    ...     print(label(path, order[:k]))
    torch-eager
    detente[fusion=off]
    detente[fusion=off+torch-kernels=off]
    jax[fusion=off]
    jax
    """
    ends = ((a, NO_ARM), (b, NO_ARM))
    xla = FACTORS["fusion"].stacks
    from_the_bridge = tuple(c for c in _FROM_THE_BRIDGE if products or c.code != KERNELS)
    if a in _TORCH and b in xla:
        runtime = Cause(RUNTIME, _RUNTIMES[b == BRIDGE, products], first=True, guess=0.5)
        causes = (runtime, *(from_the_bridge if b != BRIDGE else ()), *_switched(_LACKS.get(a, ())))
        return Path(*ends, causes, BRIDGE if b != BRIDGE else "")
    if ".py:" in a and b in FACTORS[PROGRAM].stacks:
        # A stack of the user's: whether its program can be run by another, its capture says.
        return between(a, b)
    if a == BRIDGE and b in ("jax", "jax-scan"):
        return Path(*ends, from_the_bridge, BRIDGE)
    if a in FACTORS[TRACING].stacks and b in FACTORS[PROGRAM].stacks:
        return _traced_anew(between(a, b))
    if {a, b} == {"jax", "jax-scan"}:
        loop, mine = FACTORS["loop"], "scan" if a == "jax-scan" else "unrolled"
        return Path(*ends, (Cause("loop", loop.title, (("loop", mine),), guess=loop.guess),))
    return Path(*ends, ())


# What the compiler made says by itself that one stack has a factor and the other has not. More kernels, or fewer of a
# library's, may come from the text of the program, and say it of nothing.
_SEVERAL = "optimizer"
_TOLD = ("donation", _SEVERAL)
# Of the memory that B's results take over, up to which share A's take over next to nothing: a counter is no state.
_FEW = 0.1


def lacking(a: Facts, b: Facts, stack: str) -> tuple[str, ...]:
    """The factors that ``stack``, B, has and A has not, by what the compiler made of either.

    >>> lacking({"alias_bytes": 0, "executables": 1}, {"alias_bytes": 96, "executables": 1}, "jax")
    ('donation',)
    >>> lacking({"alias_bytes": 4, "executables": 1}, {"alias_bytes": 1_500_000_000, "executables": 1}, "jax")
    ('donation',)
    """
    after = _without_crumbs(a, b)
    return tuple(
        code
        for code in _TOLD
        if stack in FACTORS[code].stacks and not FACTORS[code].check.failure(before=b, after=after)
    )


def _without_crumbs(a: Facts, b: Facts) -> Facts:
    """A's facts, with next to nothing that it takes over as nothing."""
    fact = FACTORS["donation"].check.fact
    mine, theirs = a.get(fact), b.get(fact)
    few = isinstance(mine, int) and isinstance(theirs, int) and 0 < mine <= _FEW * theirs
    return {**a, fact: 0} if few else a


def narrowed(path: Path, lacks: Sequence[str], same_program: bool) -> Path:
    """The path with what A was found to lack, and without the program where both have one and the same. Where A's step
    is several executables, its program is none that B's runtime could take over: what the two runtimes and texts are
    worth is part of what is left, and what is known to differ has its bar."""
    mine = {c.code for c in path.causes}
    path = replace(path, causes=(*path.causes, *_switched(code for code in lacks if code not in mine)))
    handed = any(c.code == PROGRAM and c.as_a for c in path.causes)
    if _SEVERAL in lacks and handed:
        why = "a step of several executables is no program that another runtime could run"
        gone = path.falls_with(PROGRAM)
        return replace(path.without(*gone), left=tuple((code, why) for code in gone))
    return path.without(PROGRAM) if same_program and any(c.first for c in path.causes) else path


def _traced_anew(path: Path) -> Path:
    """Of PyTorch/XLA: what tracing each step costs comes first, on its own runtime; and its program is compiled by the
    JAX of its own age before it is by B's."""
    factor, age = FACTORS[TRACING], FACTORS[COMPILER]
    off = tuple((TRACING, setting) for setting in factor.settings)
    old = tuple((COMPILER, setting) for setting in age.settings)
    tracing = Cause(TRACING, factor.title, own=off, first=True, before=RUNTIME, guess=factor.guess)
    compiler = Cause(COMPILER, age.title, as_a=old, before=PROGRAM, within=RUNTIME, guess=age.guess)
    runtime, program, *rest = path.causes
    return replace(path, causes=(tracing, replace(runtime, title=_OF_ONE_AGE), compiler, program, *rest))


def _switched(factors: Iterable[str]) -> tuple[Cause, ...]:
    found = []
    for code in factors:
        factor = FACTORS[code]
        (setting,) = (s for s in factor.settings if s != STACK)
        found.append(Cause(code, factor.title, ((code, setting),), guess=factor.guess))
    return tuple(found)


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
