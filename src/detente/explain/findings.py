"""Differences between two programs, each a hypothesis with the arm that would test it, and how it ended.

Rules that read HLO say nothing of a pair of which one side has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from detente.explain.arm_effects import ArmEffect
from detente.explain.causes import PROGRAM
from detente.explain.difference_rules import RULES, Pair
from detente.explain.pair import Explanation
from detente.explain.side import Side
from detente.explain.waterfall import Bar, Effect

# So close, as a log ratio, an effect must be known before its absence is believed.
_KNOWN = 0.1

State = Literal["measured", "rejected", "untested"]


@dataclass(frozen=True)
class Finding:
    """A difference.

    rule      code of the rule
    part      path of the aligned part; empty for the whole program
    direction forward, backward, remat or optimizer; empty for the whole program
    what      what is different, with the figures, A's first
    why       by what mechanism it could cost time
    arm       the factor whose arm would test it
    a, b      lines of either program
    state     ``measured``: its arm changed the step's time beyond noise; ``rejected``: it did not; ``untested``
    said      what the arm found, or why there is none
    """

    rule: str
    part: str
    direction: str
    what: str
    why: str
    arm: str
    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()
    state: State = "untested"
    said: str = ""


def find(a: Side, b: Side, pairs: Sequence[Pair]) -> tuple[Finding, ...]:
    """Every difference that a rule knows. Nothing of a program and itself."""
    found = []
    if a.form == b.form == "hlo":
        found += [one for pair in pairs for one in _of_part(pair)]
        found += [
            Finding(rule.code, "", "", said, rule.why, rule.arm)
            for rule in RULES
            if rule.whole is not None and (said := rule.whole(a, b)) is not None
        ]
    return tuple(found)


def _of_part(pair: Pair) -> Iterator[Finding]:
    for rule in RULES:
        direction = pair.aligned.direction
        if rule.part is None or (rule.directions and direction not in rule.directions):
            continue
        # The rules of products, masks and losses are of a model's parts, an update has its own.
        if direction == "optimizer" and "optimizer" not in rule.directions:
            continue
        said = rule.part(pair)
        if said is not None:
            a, b = pair.lines(said[1])
            yield Finding(rule.code, pair.aligned.path, direction, said[0], rule.why, rule.arm, a, b)


def settled(
    findings: Sequence[Finding], effects: Sequence[ArmEffect], explained: Explanation | None
) -> tuple[Finding, ...]:
    """The findings with what their arms found. A difference of the programs' text is tested together with all others of
    its kind: where the whole program makes no difference, none of them does; where it does, each is one of several, or
    the only one."""
    bars = {b.cause: b for b in explained.waterfall.bars} if explained and explained.waterfall else {}
    dropped = explained.dropped if explained else {}
    unsettled = explained.reason if explained and not bars else ""
    by_factor: dict[str, list[ArmEffect]] = {}
    for effect in effects:
        by_factor.setdefault(effect.factor, []).append(effect)
    found = []
    of_text = sum(f.arm == PROGRAM for f in findings)
    for one in findings:
        state, said = _state(one, bars, dropped, by_factor, unsettled, of_text)
        found.append(
            Finding(one.rule, one.part, one.direction, one.what, one.why, one.arm, one.a, one.b, state, said)
        )
    return tuple(found)


def _state(
    one: Finding,
    bars: Mapping[str, Bar],
    dropped: Mapping[str, str],
    by_factor: Mapping[str, list[ArmEffect]],
    unsettled: str,
    of_text: int,
) -> tuple[State, str]:
    bar = bars.get(one.arm)
    if bar is not None:
        ratio = bar.effect.ratio
        if bar.below_noise and (unsure := _unsure(bar.effect)):
            return "untested", f"switching the {one.arm} changes the step by {ratio:.3f}x, {unsure}"
        if bar.below_noise:
            return "rejected", f"switching the {one.arm} changes the step by {ratio:.3f}x, which is noise"
        if one.arm == PROGRAM and of_text == 1:
            return (
                "measured",
                f"switching the program makes the step {ratio:.3f}x, and no other difference was found",
            )
        if one.arm == PROGRAM:
            return "untested", (
                f"the whole program makes the step {ratio:.3f}x; which of its differences, no arm has told apart"
            )
        return "measured", f"switching it makes the step {ratio:.3f}x"
    if one.arm in dropped:
        return "untested", dropped[one.arm]
    for effect in by_factor.get(one.arm, ()):
        if effect.state == "measured" and effect.effect is not None:
            return "measured", f"{effect.row} is {effect.effect.ratio:.3f}x of {effect.against}"
        if effect.state == "below noise" and effect.effect is not None and (unsure := _unsure(effect.effect)):
            return "untested", f"{effect.row} is {effect.effect.ratio:.3f}x of {effect.against}, {unsure}"
        if effect.state == "below noise" and effect.effect is not None:
            return (
                "rejected",
                f"{effect.row} is {effect.effect.ratio:.3f}x of {effect.against}, which is noise",
            )
        if effect.reason:
            return "untested", effect.reason
    return "untested", unsettled or f"no arm of {one.arm} ran between these two"


def _unsure(effect: Effect) -> str:
    """Why an effect that is not beyond noise rejects nothing: it is not known well enough; empty where it is."""
    if effect.interval is None:
        return "and one block says nothing of how sure that is"
    if effect.reach <= _KNOWN:
        return ""
    low, high = math.exp(effect.interval.low), math.exp(effect.interval.high)
    return f"but anything from {low:.2f}x to {high:.2f}x is possible: that rejects nothing"
