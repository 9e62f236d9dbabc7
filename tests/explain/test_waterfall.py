"""Bars that add up, in whatever order the causes act on one another."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from detente.explain.waterfall import FULL, arms_of, orders_of, waterfall
from detente.records.fault import UsageFault

BLOCKS = range(1, 9)


def measured(causes, seconds, *, spread=0.0, seed=0):
    """Times of every arm, where ``seconds(arm)`` are a step's; each block is a machine of another speed."""
    drawn = random.Random(seed)
    speed = {b: 1 + 0.3 * drawn.random() for b in BLOCKS}
    return {
        arm: {b: seconds(arm) * speed[b] * math.exp(drawn.gauss(0, spread)) for b in BLOCKS}
        for arm in arms_of(orders_of(causes))
    }, speed


def stacks(times, causes, *, beyond=1.0):
    """The two rows themselves: as the arms with nothing and with everything switched, B ``beyond`` times as slow."""
    return times[frozenset()], {b: s * beyond for b, s in times[frozenset(causes)].items()}


def wide(effect):
    """The width of an effect's interval, as a log ratio."""
    return effect.interval.high - effect.interval.low


def test_causes_that_do_not_meet_have_their_own_effect_in_every_order() -> None:
    worth = {"program": 0.9, "tracing": 2.0, "donation": 1.0}
    times, _ = measured(worth, lambda arm: math.prod((worth[c] for c in arm), start=0.5))
    found = waterfall(times, *stacks(times, worth), orders_of(list(worth)))
    for bar in found.bars:
        assert bar.effect.ratio == pytest.approx(worth[bar.cause])
        assert bar.orders == pytest.approx((math.log(worth[bar.cause]),) * 2)
        assert not bar.interacts
    assert [b.cause for b in found.bars if b.below_noise] == ["donation"]
    assert found.residual.mean == pytest.approx(0, abs=1e-12) and found.explained


def test_an_interaction_is_shared_and_said() -> None:
    """Without fusion the program's form matters, with it not at all: an order alone would give it all or nothing."""

    def seconds(arm):
        unfused = "fusion" in arm
        return 1.0 * (2.5 if unfused else 1.0) * (1.4 if unfused and "program" in arm else 1.0)

    times, _ = measured(["fusion", "program"], seconds)
    found = waterfall(
        times, *stacks(times, ["fusion", "program"]), orders_of(["fusion", "program"]), noise=0.01
    )
    fusion, program = sorted(found.bars, key=lambda bar: bar.cause)
    assert program.orders == pytest.approx((0.0, math.log(1.4)))
    assert program.effect.mean == pytest.approx(math.log(1.4) / 2)
    assert program.interacts and fusion.interacts
    assert math.exp(sum(b.effect.mean for b in found.bars)) == pytest.approx(2.5 * 1.4)


def test_what_the_arms_do_not_reach_is_the_residual() -> None:
    times, _ = measured(["tracing"], lambda arm: 2.0 if arm else 1.0, spread=0.002)
    found = waterfall(times, *stacks(times, ["tracing"], beyond=1.5), orders_of(["tracing"]))
    assert found.residual.ratio == pytest.approx(1.5, rel=0.01)
    assert not found.explained
    assert found.gap.mean == pytest.approx(sum(b.effect.mean for b in found.bars) + found.residual.mean)


def test_what_could_be_nothing_else_is_so_by_construction() -> None:
    """From PyTorch's stacks the arms begin with A's own row and end with B's: whatever the bars, they are the gap."""
    drawn = random.Random(1)
    worth = {arm: drawn.uniform(0.01, 50) for arm in arms_of(orders_of(["a", "b"]))}
    times, _ = measured(["a", "b"], lambda arm: worth[arm], spread=0.01)
    found = waterfall(times, *stacks(times, ["a", "b"]), orders_of(["a", "b"]))
    assert found.by_construction
    beyond = waterfall(times, *stacks(times, ["a", "b"], beyond=1.001), orders_of(["a", "b"]))
    assert not beyond.by_construction and beyond.explained


def test_of_one_block_a_gap_is_not_uncertain_by_everything() -> None:
    """The interval of one block is none: with it any residual was explained."""
    times = {arm: {1: seconds} for arm, seconds in ((frozenset[str](), 1.0), (frozenset({"a"}), 1.1))}
    found = waterfall(times, {1: 1.0}, {1: 9.0}, [("a",)])
    assert found.gap.interval is None and found.left == "not explained"


@pytest.mark.parametrize("seed", range(20))
def test_a_stack_against_itself_has_no_bar(seed: int) -> None:
    """Of 20 sessions of two causes that do nothing, at 3 % noise a block, one bar in twenty may pass for chance; a
    noise floor as wide as an A/A pair's leaves none."""
    times, _ = measured(["program", "tracing"], lambda arm: 1.0, spread=0.03, seed=seed)
    found = waterfall(
        times, *stacks(times, ["program", "tracing"]), orders_of(["program", "tracing"]), noise=0.05
    )
    assert all(bar.below_noise for bar in found.bars)


def test_the_machines_speed_is_in_no_bar() -> None:
    times, speed = measured(["tracing"], lambda arm: 2.0 if arm else 1.0)
    assert max(speed.values()) / min(speed.values()) > 1.1
    (bar,) = waterfall(times, *stacks(times, ["tracing"]), orders_of(["tracing"])).bars
    assert wide(bar.effect) < 1e-9


def test_many_causes_are_sampled_with_their_reverses() -> None:
    causes = [f"c{i}" for i in range(FULL + 2)]
    orders = orders_of(causes, pairs=5, seed=3)
    assert len(orders) == 10 and all(order[::-1] in orders for order in orders)
    assert orders == orders_of(causes, pairs=5, seed=3)
    assert frozenset() in arms_of(orders) and frozenset(causes) in arms_of(orders)
    assert len(arms_of(orders)) < 2 ** len(causes)
    worth = dict(zip(causes, [1.2, 0.8, 1.5, 1.0, 0.9, 1.1], strict=True))
    times = {
        arm: dict.fromkeys(BLOCKS, math.prod((worth[c] for c in arm), start=1.0)) for arm in arms_of(orders)
    }
    found = waterfall(times, *stacks(times, causes), orders)
    assert {b.cause: b.effect.ratio for b in found.bars} == pytest.approx(worth)


def test_all_orders_of_four_need_every_arm() -> None:
    assert set(arms_of(orders_of(list("abcd")))) == {
        frozenset(c) for n in range(5) for c in itertools.combinations("abcd", n)
    }


def test_what_is_missing_is_named() -> None:
    times, _ = measured(["a", "b"], lambda arm: 1.0)
    rows = stacks(times, ["a", "b"])
    with pytest.raises(UsageFault, match=r"not measured: a \+ b"):
        waterfall({arm: t for arm, t in times.items() if len(arm) < 2}, *rows, orders_of(["a", "b"]))
    with pytest.raises(UsageFault, match="no block"):
        waterfall(times, {99: 1.0}, rows[1], orders_of(["a", "b"]))
    with pytest.raises(UsageFault, match="twice"):
        orders_of(["a", "a"])
    half = {**times, frozenset("a"): {1: 1.0, 2: 1.0}}
    assert waterfall(half, *rows, orders_of(["a", "b"])).blocks == 2


# How sure -----------------------------------------------------------------------------------------------------------


def test_a_bar_is_beyond_noise_by_its_whole_interval() -> None:
    """1.02x to 1.27x where equal rows lie up to 12.5 % apart was measured by a bar, and below noise by an arm."""
    base = dict.fromkeys(range(5), 0.1)
    slow = {k: 0.1 * math.exp(0.13 + 0.05 * (k - 2)) for k in range(5)}
    times = {frozenset[str](): base, frozenset({"donation"}): slow}
    (bar,) = waterfall(times, base, slow, [("donation",)], noise=math.log1p(0.125)).bars
    assert bar.effect.interval is not None and bar.effect.interval.excludes_equal() and bar.below_noise
    (clear,) = waterfall(times, base, slow, [("donation",)], noise=math.log1p(0.01)).bars
    assert not clear.below_noise


def test_bars_are_corrected_for_their_number_and_the_gap_is_not() -> None:
    causes = ["program", "tracing", "donation"]
    times, _ = measured(causes, lambda arm: 2.0 ** len(arm), spread=0.02)
    found = waterfall(times, *stacks(times, causes), orders_of(causes), alpha=0.03)
    assert {bar.effect.interval.level for bar in found.bars if bar.effect.interval} == {0.99}
    assert found.gap.interval is not None and found.gap.interval.level == 0.97


def test_blocks_that_resemble_their_neighbours_widen_every_interval() -> None:
    times, _ = measured(["a", "b"], lambda arm: 1.1 ** len(arm), spread=0.02)
    rows = stacks(times, ["a", "b"], beyond=1.01)
    plain, resembling = (waterfall(times, *rows, orders_of(["a", "b"]), rho=rho) for rho in (0.0, 0.6))
    for one, other in zip(
        (plain.gap, *(b.effect for b in plain.bars)),
        (resembling.gap, *(b.effect for b in resembling.bars)),
        strict=True,
    ):
        assert wide(other) == pytest.approx(2 * wide(one)) and other.mean == one.mean


def test_orders_of_pure_noise_do_not_interact() -> None:
    """The largest of 24 orders lies far from the least by chance: of four causes that do nothing, nearly every session
    had a bar that was called an interaction."""
    causes = list("abcd")
    said = 0
    for seed in range(40):
        times, _ = measured(causes, lambda arm: 1.0, spread=0.02, seed=seed)
        found = waterfall(times, *stacks(times, causes), orders_of(causes), noise=math.log1p(0.02))
        said += any(bar.interacts for bar in found.bars)
    assert said <= 2


def test_of_four_causes_two_that_meet_are_found() -> None:
    def seconds(arm):
        return 1.3 ** len(arm) * (1.5 if {"a", "b"} <= arm else 1.0)

    for seed in range(5):
        times, _ = measured(list("abcd"), seconds, spread=0.02, seed=seed)
        found = waterfall(
            times, *stacks(times, list("abcd")), orders_of(list("abcd")), noise=math.log1p(0.02)
        )
        assert [bar.cause for bar in found.bars if bar.interacts] == ["a", "b"]


def left(gap: float, part: float, spread: float) -> str:
    """What is said of a gap, as a log ratio, of which one cause explains ``part``; ``spread``: over blocks."""
    blocks = range(5)
    a = dict.fromkeys(blocks, 0.1)
    b = {k: 0.1 * math.exp(gap + spread * (k - 2)) for k in blocks}
    arm = {k: 0.1 * math.exp(gap * part) for k in blocks}
    return waterfall({frozenset[str](): a, frozenset({"p"}): arm}, a, b, [("p",)]).left


def test_a_worse_measurement_explains_no_more() -> None:
    """A gap of 1.35x, of which 1.27x was left, was explained: it was uncertain by as much."""
    assert left(0.3, 0.2, 0.0) == left(0.3, 0.2, 0.005) == "not explained"
    assert left(0.3, 1.0, 0.0) == left(0.3, 0.95, 0.005) == "explained"
    for part in (0.2, 1.0):
        assert left(0.3, part, 0.11) == "not settled"
