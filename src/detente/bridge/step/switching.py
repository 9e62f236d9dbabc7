"""From one form of a program to another while training goes on: certified there, measured, and only then used.

Both forms take steps on copies of the state of that moment, with the batch that comes next; the training stays where it
is. A form that fails its certificate, does not fit beside what is there, or is no faster is not used, and says so.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detente.bridge.cache.entry import Stored
from detente.bridge.certify.certificate import Certificate
from detente.bridge.choose.choice import Choice, Considered
from detente.bridge.choose.choose import Chosen
from detente.bridge.choose.memory import available_bytes, memory
from detente.bridge.program.program import Compiled
from detente.bridge.state.state import State
from detente.bridge.step.certifier import Certifier, Open
from detente.bridge.step.making import measure
from detente.bridge.step.variants import Variant
from detente.bridge.telling import phase

ROUNDS, STEPS = 2, 2  # of each form, in turns
_log = logging.getLogger("detente")


@dataclass(frozen=True)
class Now:
    """What the next step would run on: its batch, the numbers of the optimizer, the state, and how to have the other
    form's step ``opened`` for a certificate (None: nobody wants one)."""

    arrays: list[Any]
    hyper: Any
    state: State
    rule: Any
    seed: int
    count: int
    opened: Callable[[Variant], Open] | None


def switched(
    variant: Variant, found: Chosen[Compiled], certifier: Certifier, now: Now
) -> tuple[Variant, Certificate | None]:
    """The program to go on with, ``later`` no more, and the certificate of one that is new. What speaks against the
    other form leaves the training in this one. May raise what a step may; nothing but copies were touched then."""
    stay = replace(variant, later=None)
    if found.choice.form == variant.choice.form:
        return replace(stay, choice=found.choice), None
    other = replace(
        stay,
        compiled=found.compiled,
        choice=found.choice,
        stacks=found.shaped.stacks,
        cached=False,
        stored=Stored(),
    )
    name = other.choice.form
    planned = memory(other.compiled.executable)
    # A copy of the state by torch's names, one in the form's own layout, and what a step computes with.
    if planned is not None and 2 * planned.peak > available_bytes():
        return _declined(stay, name, "it does not fit beside this one to be certified and measured"), None
    certificate = None
    if now.opened is not None:
        with phase("certify", name):
            certificate = _certificate(other, certifier, now.opened(other), now)
        if not certificate.ok:
            worst = certificate.failed[0]
            why = f"its certificate failed ({worst.kind} {worst.name})"
            warnings.warn(f"the form {name} is not used: {why}; training goes on as it did", stacklevel=6)
            return _declined(stay, name, why), None
    seconds = {variant.choice.form: float("inf"), name: float("inf")}
    with phase("tune"):
        for form in ROUNDS * (variant, other):
            taken = measure(form.compiled, now.arrays, now.hyper, now.state, STEPS)
            seconds[form.choice.form] = min(taken, seconds[form.choice.form])
    faster = seconds[name] < seconds[variant.choice.form]
    kept = other if faster else stay
    told = f"{seconds[name] * 1e3:.3g} ms a step for {seconds[variant.choice.form] * 1e3:.3g} as"
    why = f"measured while training: {name} takes {told} {variant.choice.form}"
    _log.info("from step %d on in the form %s: %s", now.count, kept.choice.form, why)
    rows = _measured((variant.choice, found.choice), seconds)
    choice = replace(kept.choice, why=why, measured=True, considered=rows)
    return replace(kept, choice=choice), certificate if faster else None


def _certificate(other: Variant, certifier: Certifier, first: Open, now: Now) -> Certificate:
    """Of the step that comes next, taken by the other form on a copy of the state."""
    held = now.state.copied(other.stacks)
    numbers = np.uint32(now.seed), np.uint32(now.count)
    changed, held.optimizer, first.loss, *_ = other.compiled(
        held.values, held.optimizer, now.arrays, now.hyper, *numbers
    )
    held.values.update(changed)
    return certifier.settle(first, held, now.rule)


def _declined(stay: Variant, form: str, why: str) -> Variant:
    _log.info("the form %s is not used: %s", form, why)
    return replace(stay, choice=replace(stay.choice, why=f"{form} is not used: {why}"))


def _measured(choices: tuple[Choice, Choice], seconds: dict[str, float]) -> tuple[Considered, ...]:
    """What was considered for the form of before and for the one that came later, with what was measured."""
    first, later = ({c.form: c for c in choice.considered} for choice in choices)
    rows = (first[c.form] if c.compile_seconds is None else c for c in later.values())
    return tuple(replace(row, seconds=seconds.get(row.form)) for row in rows)
