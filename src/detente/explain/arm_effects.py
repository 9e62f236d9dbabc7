"""What each arm of a session is worth by itself: the paired log ratio of its row over the row without it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from detente.explain.rows import Rows, label_of
from detente.explain.waterfall import Effect
from detente.judge.statistics import ALPHA, corrected, interval, paired
from detente.records.arm import Arm
from detente.records.verdict import LEAST_BLOCKS
from detente.stacks.factors import Row, bases_of

State = Literal["measured", "below noise", "dropped", "untested"]


@dataclass(frozen=True)
class ArmEffect:
    """One factor of one row. ``effect`` above 0: the step takes longer under the arm. ``below noise``: its interval
    holds 0, or does not reach beyond what equal programs lie apart by. Dropped and untested ones have a ``reason``; an
    untested one may have figures that decide nothing (too few blocks, a machine that drifts).
    ``control``: the setting is the stack's own, brought in through the same door (``jax[program=jax]``): it says what
    the door costs, and of the factor nothing."""

    factor: str
    row: str
    against: str
    state: State
    effect: Effect | None = None
    reason: str = ""
    control: bool = False


def arm_effects(rows: Rows, planned: tuple[Row, ...] = ()) -> tuple[ArmEffect, ...]:
    """The effect of every factor of every row under an arm: those that were measured, those that were refused, and the
    ``planned`` ones that never ran. The interval is corrected for the number of effects."""
    there = dict.fromkeys((*rows.medians, *rows.refused, *planned))
    pairs: list[tuple[Row, str, Row]] = []
    for row in there:
        against = [(factor, _against(row, factor)) for factor in row[1].factors]
        # A row that is compared in one of its factors is there for that one; one that is compared in none says why.
        pairs += [(row, *one) for one in [o for o in against if o[1] in there] or against]
    return tuple(_one(rows, row, factor, base, len(pairs)) for row, factor, base in pairs)


def _against(row: Row, factor: str) -> Row:
    """The same row without the factor; of a foreign program the stack's own, through the same door."""
    stack, arm = row
    if factor != "program":
        return bases_of(stack, arm)[factor]
    own = Arm(tuple((f, stack if f == factor else s) for f, s in arm.settings))
    return (stack, own) if own != arm else (stack, arm.only(f for f in arm.factors if f != factor))


def _one(rows: Rows, row: Row, factor: str, base: Row, pairs: int) -> ArmEffect:
    name, against = label_of(row), label_of(base)
    control = dict(row[1].settings)[factor] == row[0]

    def unknown(state: State, why: str) -> ArmEffect:
        return ArmEffect(factor, name, against, state, None, why, control)

    for one in (row, base):
        if why := rows.why_not(one):
            return unknown("dropped" if one in rows.refused else "untested", why)
    pair = paired(rows.medians[row], rows.medians[base], rows.blocks, rows.correlation)
    if not pair.n:
        return unknown("untested", "no block holds both")
    effect = Effect(pair.mean, interval(pair, corrected(ALPHA, pairs, rows.share)))
    if why := _decides_nothing(rows, pair.n):
        return ArmEffect(factor, name, against, "untested", effect, why, control)
    found = effect.interval
    clear = found is not None and found.beyond(math.expm1(rows.log_noise))
    return ArmEffect(factor, name, against, "measured" if clear else "below noise", effect, "", control)


def _decides_nothing(rows: Rows, blocks: int) -> str:
    """Why figures of so many blocks decide nothing, as they decide no verdict; empty where they may."""
    if rows.unsure:
        return rows.unsure
    return f"it is of {blocks} blocks, and {LEAST_BLOCKS} are needed" if blocks < LEAST_BLOCKS else ""
