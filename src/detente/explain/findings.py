"""Differences between two programs, each a hypothesis with the arm that would test it, and how it ended.

Rules that read HLO say nothing of a pair of which one side has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from detente.explain.arm_effects import ArmEffect
from detente.explain.causes import PROGRAM, RUNTIME, TRACING
from detente.explain.difference_rules import RULES, Pair
from detente.explain.pair import Explanation
from detente.explain.side import Side
from detente.explain.waterfall import Bar, Effect

# As a log ratio, a tenth more; a tenth less is further from nothing. What is not beyond noise is believed to be nothing
# where nothing larger than this is possible.
_SMALL = math.log(1.1)

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
    state     ``measured``: its arm changed the step's time beyond noise; ``rejected``: it did not, and a tenth is
              more than is possible; ``untested``: nobody knows
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
    if not a.form == b.form == "hlo":
        return ()
    # Of a step in several programs the first is read: what counts over all of a step, or in its update, would compare
    # a piece with a whole.
    whole = a.executables == b.executables
    found = [
        one for pair in pairs if whole or pair.aligned.direction != "optimizer" for one in _of_part(pair)
    ]
    found += [
        Finding(rule.code, "", "", said, rule.why, rule.arm)
        for rule in RULES
        if rule.whole is not None and (whole or not rule.of_text) and (said := rule.whole(a, b)) is not None
    ]
    return tuple(found)


def _of_part(pair: Pair) -> Iterator[Finding]:
    for rule in RULES:
        direction = pair.aligned.direction
        if rule.part is None or (rule.directions and direction not in rule.directions):
            continue
        if rule.counts and not pair.counted:
            continue
        # The rules of products, masks and losses are of a model's parts, an update has its own.
        if direction == "optimizer" and "optimizer" not in rule.directions:
            continue
        said = rule.part(pair)
        if said is not None:
            a, b = pair.lines(said[1])
            yield Finding(rule.code, pair.aligned.path, direction, said[0], rule.why, rule.arm, a, b)


def settled(
    findings: Sequence[Finding],
    effects: Sequence[ArmEffect],
    explained: Explanation | None,
    stood_for: str = "",
) -> tuple[Finding, ...]:
    """The findings with what their arms found. ``stood_for``: the stack whose program another one ran for it, where the
    findings are of that one; what its runtime costs is no answer to theirs.

    A difference of the programs' text is tested together with all others of its kind: where the whole program makes no
    difference, none of them does; where it does, each is one of several, or the only one. None is rejected in a session
    that says of nothing that it is the same."""
    bars = {b.cause: b for b in explained.waterfall.bars} if explained and explained.waterfall else {}
    dropped = explained.dropped if explained else {}
    unsettled = explained.reason if explained and not bars else ""
    never_same = explained.never_same if explained else ""
    by_factor: dict[str, list[ArmEffect]] = {}
    for effect in effects:
        by_factor.setdefault(effect.factor, []).append(effect)
    found = []
    of_text = sum(f.arm == PROGRAM for f in findings)
    # Where what the host traces has a bar of its own, it is that one's question.
    finer = {RUNTIME: TRACING} if TRACING in bars else {}
    for one in (replace(f, arm=finer.get(f.arm, f.arm)) for f in findings):
        if stood_for and one.arm == RUNTIME:
            said = f"the bar of the runtime is of {stood_for}'s, and not of these two"
            found.append(replace(one, state="untested", said=said))
            continue
        state, said = _state(one, bars, dropped, by_factor, unsettled, of_text)
        if state == "rejected" and never_same:
            state, said = "untested", f"{said}, but {never_same}: that rejects nothing"
        found.append(replace(one, state=state, said=said))
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
        said = f"switching the {one.arm} makes the step {_told(bar.effect)}"
        if bar.below_noise:
            return _without(said, bar.effect, bar.orders)
        return _with(one, said, of_text)
    if one.arm in dropped:
        return "untested", dropped[one.arm]
    for effect in by_factor.get(one.arm, ()):
        if effect.control:
            continue
        if effect.effect is None:
            return "untested", effect.reason
        said = f"{effect.row} is {_told(effect.effect)} of {effect.against}"
        if effect.state == "untested":
            return "untested", f"{said}, but {effect.reason}"
        return _with(one, said, of_text) if effect.state == "measured" else _without(said, effect.effect)
    return "untested", unsettled or f"no arm of {one.arm} ran between these two"


def _with(one: Finding, said: str, of_text: int) -> tuple[State, str]:
    """Of an arm that changed the step. One of several differences of text that were tested together is not told apart
    from the others."""
    if one.arm != PROGRAM:
        return "measured", said
    if of_text == 1:
        return "measured", f"{said}, and no other difference was found"
    return "untested", f"{said}, the whole program; which of its differences, no arm has told apart"


def _without(said: str, effect: Effect, orders: tuple[float, float] | None = None) -> tuple[State, str]:
    """Of an arm whose effect is not beyond noise: it rejects where every size that is possible, in every order, is
    small."""
    if effect.interval is None:
        return "untested", f"{said}, and one block says nothing of how sure that is"
    low, high = effect.interval.low, effect.interval.high
    possible = f"anything from {math.exp(low):.2f}x to {math.exp(high):.2f}x is possible"
    if low > 0 or high < 0:  # there is an effect, of a size that equal rows have, too
        possible = "one row differs from itself by as much here"
    ends = [(low, high, possible)]
    if orders is not None and orders[0] < orders[1]:
        least, most = (math.exp(x) for x in orders)
        ends += [(*orders, f"it is {least:.2f}x to {most:.2f}x by the order in which causes are switched")]
    for low, high, told in ends:
        if not -_SMALL <= low <= high <= _SMALL:
            return "untested", f"{said}, but {told}: that rejects nothing"
    return "rejected", f"{said}, which is noise here"


def _told(effect: Effect) -> str:
    """``1.016x (0.998 to 1.034)``."""
    ratio, between = f"{effect.ratio:.3f}x", effect.interval
    return ratio if between is None else f"{ratio} ({between.ratios[0]:.3f} to {between.ratios[1]:.3f})"
