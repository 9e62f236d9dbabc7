"""``choose``: the form that a program runs in.

By default a closed rule picks and one form is compiled, so the first step waits for nothing else. Only when its
planned memory does not fit is the next smaller form compiled. With ``tune`` every form is compiled and measured,
and the result is remembered: later the same program runs in that form at once, with ``tune`` or without. ``quick``
begins with the form that compiles fastest; ``unseen`` says which one the rule would have compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TypeVar

from detente.bridge.choose.choice import Choice, Considered
from detente.bridge.choose.forms import FORMS, NO_LAYERS, Shaped, available, loops, shape
from detente.bridge.choose.memory import Memory, memory
from detente.bridge.choose.remember import fingerprint, recall, remember
from detente.bridge.graph import Graph
from detente.bridge.live.interrupts import safe
from detente.bridge.refusal import refuse
from detente.bridge.roll.fold import roll
from detente.bridge.telling import phase

Compiled = TypeVar("Compiled")

# Loops of at least this many iterations run rolled. Written-out layers are faster wherever it was measured: by 8 to
# 15 % in four models of 12 layers and in one of 24 (docs/design/rolling.md). Their compile time grows with depth (at 24
# layers 17 s for a loop's 5, which sixty steps earn back), a loop's does not. What does not fit is rolled at any depth.
ROLL_FROM = 25
# From so many layers on a loop compiles faster than layers that are written out by more than a switch costs.
QUICK_FROM = 7
# The default policy of a rolled program: a bare loop keeps more than XLA keeps of written-out layers.
DEFAULT = "rolled+dots"
# Of the memory that is there, what a plan may use: the process holds more than the program's buffers.
USABLE = 0.95
# Every form is measured this often, in turn, and its fastest step counts: what else the machine did meanwhile must
# not choose.
ROUNDS = 3
_LADDER = ("unrolled", "rolled+dots", "rolled+full", "inside")


@dataclass(frozen=True)
class Chosen(Generic[Compiled]):
    """The choice, the graph in its form, and what ``build`` made of it."""

    choice: Choice
    shaped: Shaped
    compiled: Compiled


def choose(
    graph: Graph,
    build: Callable[[Shaped], Compiled],
    *,
    executable: Callable[[Compiled], Any] = lambda compiled: compiled,
    alike: Callable[[str], Hashable] = lambda name: None,
    whole: str = "",
    limit_bytes: int | None = None,
    form: str | None = None,
    tune: Callable[[Compiled], float] | None = None,
    quick: bool = False,
    folder: Path | None = None,
    extra: Any = None,
) -> Chosen[Compiled]:
    """The form that ``graph`` runs in, compiled.

    ``build(shaped)`` compiles one form; ``executable`` gives the ``jax.stages.Compiled`` of what it returns.
    ``alike(name)`` is equal for parameters that may be updated as one stack (``alike_of(rule)``). ``whole``: why
    every gradient must exist before the first update, if it must. ``limit_bytes``: memory of the device
    (``memory.limit_bytes()``).
    ``form``: this one and no other. ``tune(compiled)`` returns the seconds of one step and asks for a measured
    choice, which is stored in ``folder`` under the program's fingerprint (``extra`` joins it) and found there by
    later calls, with ``tune`` or without. ``quick``: a loop that compiles fast in the place of many written-out layers.

    Raises Refused for a ``form`` that this program cannot run in. When nothing fits ``limit_bytes`` the smallest
    form is returned and ``choice.why`` says so: the plan is an estimate on some backends, and the device decides.
    """
    with phase("lower"):
        rolled = roll(graph)
    refused = available(graph, whole, rolled)
    if form is not None:
        if form not in FORMS:
            raise ValueError(f"form is {form!r}; it is one of {', '.join(FORMS)}")
        if refused[form]:
            raise refuse("form", f"this program cannot run as {form!r}: {refused[form]}")
    work = _Work(graph, rolled, build, executable, alike, refused, limit_bytes)
    if form is not None:
        return work.done(form, "asked for")
    key = name(graph, whole, limit_bytes, extra) if folder is not None else ""
    stored = recall(folder, key)
    if stored is not None and not refused.get(stored.form, "unknown"):
        return work.done(stored.form, stored.why, stored)
    if tune is not None:
        chosen = work.measured(tune)
        remember(folder, key, chosen.choice)
        return chosen
    return work.quick() if quick else work.by_rule()


def by_depth(iterations: Sequence[int]) -> tuple[str, str]:
    """The form that the rule begins with for a program with such loops, and why."""
    deepest = max(iterations, default=0)
    if not deepest:
        return "unrolled", NO_LAYERS
    if deepest < ROLL_FROM:
        return "unrolled", f"what repeats does so {deepest} times at most; loops pay from {ROLL_FROM}"
    return DEFAULT, f"a part repeats {deepest} times; loops pay from {ROLL_FROM}"


def unseen(choice: Choice) -> str:
    """The form that the rule would begin with where this choice runs another and nobody has compiled it; else empty."""
    form, _ = by_depth(choice.iterations)
    known = any(c.form == form and (c.refused or c.compile_seconds is not None) for c in choice.considered)
    return "" if choice.measured or known or form == choice.form else form


def name(graph: Graph, whole: str, limit_bytes: int | None, extra: Any) -> str:
    """Under which a program's tuned choice is remembered; arguments as of ``choose``."""
    return fingerprint(graph, (extra, whole, limit_bytes))


def alike_of(rule: Any) -> Callable[[str], Hashable]:
    """``alike`` for a ``bridge.optim`` rule: parameters with one update program, whatever their group's numbers."""
    return lambda name: id(rule.programs[name]) if name in rule.programs else None


class _Work(Generic[Compiled]):
    def __init__(
        self,
        graph: Graph,
        rolled: Graph,
        build: Callable[[Shaped], Compiled],
        executable: Callable[[Compiled], Any],
        alike: Callable[[str], Hashable],
        refused: dict[str, str],
        limit: int | None,
    ) -> None:
        self.graph, self.rolled = graph, rolled
        self.build, self.executable, self.alike = build, executable, alike
        self.refused, self.limit = refused, limit
        self.iterations = loops(rolled)
        self.made: dict[str, tuple[Shaped, Compiled, Memory | None, float]] = {}
        self.seconds: dict[str, float] = {}

    def make(self, form: str) -> Memory | None:
        """Compile one form, once."""
        if form not in self.made:
            shaped = shape(self.graph, FORMS[form], self.alike, self.rolled)
            start = perf_counter()
            compiled = self.build(shaped)
            self.made[form] = (shaped, compiled, memory(self.executable(compiled)), perf_counter() - start)
            safe()
        return self.made[form][2]

    def fits(self, planned: Memory | None) -> bool:
        return self.limit is None or planned is None or planned.peak <= USABLE * self.limit

    def quick(self) -> Chosen[Compiled]:
        """The form that compiles fastest, where that is another than the rule's and fits."""
        first, _ = by_depth(self.iterations)
        deep = max(self.iterations, default=0) >= QUICK_FROM
        if first != DEFAULT and deep and not self.refused[DEFAULT] and self.fits(self.make(DEFAULT)):
            return self.done(DEFAULT, f"a loop compiles fastest; {first} is made while training goes on")
        return self.by_rule()

    def by_rule(self) -> Chosen[Compiled]:
        first, why = by_depth(self.iterations)
        ladder = [first, *_LADDER[_LADDER.index(first) + 1 :]]
        for form in (f for f in ladder if not self.refused[f]):
            if self.fits(self.make(form)):
                why = why if form == first else f"{first} does not fit {self.limit} bytes, this does"
                return self.done(form, why)
        return self.done(
            min(self.made, key=self.peak), f"nothing fits {self.limit} bytes; this is the smallest"
        )

    def peak(self, form: str) -> int:
        planned = self.made[form][2]
        return 0 if planned is None else planned.peak

    def measured(self, tune: Callable[[Compiled], float]) -> Chosen[Compiled]:
        """Compile every form, measure those that fit, in turn, take the fastest."""
        possible = [form for form, reason in self.refused.items() if not reason]
        fitting = []
        for number, form in enumerate(possible, start=1):
            with phase("tune", f"{form} ({number} of {len(possible)})"):
                fitting += [form] if self.fits(self.make(form)) else []
        if not fitting:
            return self.by_rule()
        for turn in range(1, ROUNDS + 1):
            for form in fitting:
                with phase("tune", f"{form} (measured {turn} of {ROUNDS})"):
                    seconds = tune(self.made[form][1])
                self.seconds[form] = min(seconds, self.seconds.get(form, seconds))
        best = min(self.seconds, key=lambda f: self.seconds[f])
        several = f"the fastest of {len(fitting)} measured forms"
        return self.done(best, several if len(fitting) > 1 else "the only form that is possible and fits")

    def done(self, form: str, why: str, stored: Choice | None = None) -> Chosen[Compiled]:
        self.make(form)
        shaped, compiled, _, _ = self.made[form]
        if stored is not None:
            return Chosen(stored, shaped, compiled)
        choice = Choice(
            form=form,
            policy=FORMS[form].policy,
            why=why,
            considered=tuple(self.row(f) for f in FORMS),
            iterations=self.iterations,
            limit_bytes=self.limit,
            measured=bool(self.seconds),
        )
        return Chosen(choice, shaped, compiled)

    def row(self, form: str) -> Considered:
        if self.refused[form]:
            return Considered(form, refused=self.refused[form])
        if form not in self.made:
            return Considered(form)
        _, _, planned, seconds = self.made[form]
        return Considered(
            form,
            peak_bytes=planned.peak if planned else None,
            temp_bytes=planned.temp if planned else None,
            compile_seconds=seconds,
            seconds=self.seconds.get(form),
        )
