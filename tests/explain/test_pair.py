"""Pairs whose causes are known: what is switched is found, what was not measured has no bar, what is open says so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from detente.explain.arm_effects import arm_effects
from detente.explain.ask_and_answer import _rows
from detente.explain.budget import choose
from detente.explain.causes import Cause, Path, between, known_path, narrowed, rows_between, switched_off
from detente.explain.pair import explain_pair, open_still
from detente.explain.question import ask
from detente.explain.rows import Rows
from detente.records.arm import NO_ARM, arm_of
from detente.session.request import Request
from detente.stacks.factors import Row

BLOCKS = tuple(range(10))
JAX: Row = ("jax", NO_ARM)
XLA: Row = ("torch-xla", NO_ARM)


def seconds_of(row: Row) -> float:
    """torch-xla traces for 11 ms, and its program takes as long as JAX's; fusion is worth 2.2 and donation 1.1."""
    stack, arm = row
    if stack == "torch-xla":
        return 13.5e-3
    worth = 2e-3
    worth *= 1.01 if arm.get("program") == "torch-xla" else 1.0
    worth *= 2.2 if arm.get("fusion") == "off" else 1.0
    worth *= 1.1 if arm.get("donation") == "off" else 1.0
    return worth


def rows(
    wanted: Mapping[Row, str] | list[Row],
    seconds: Callable[[Row], float] = seconds_of,
    *,
    spread: float = 0.002,
    noise: float | None = 0.02,
    unsure: str = "",
    seed: int = 0,
) -> Rows:
    """Rows that ran in BLOCKS; those of a mapping with a reason were refused for it."""
    drawn = random.Random(seed)
    refused = {r: why for r, why in dict(wanted).items() if why} if isinstance(wanted, Mapping) else {}
    speed = {b: 1 + 0.3 * drawn.random() for b in BLOCKS}
    medians = {
        r: {b: seconds(r) * speed[b] * math.exp(drawn.gauss(0, spread)) for b in BLOCKS}
        for r in wanted
        if r not in refused
    }
    twins = {r: {b: s * math.exp(drawn.gauss(0, spread)) for b, s in m.items()} for r, m in medians.items()}
    return Rows("gpt2/paper/train-step/fp32/cpu", medians, refused, noise, BLOCKS, 1.0, unsure, twins)


def every_row(path: Path) -> list[Row]:
    return list(dict.fromkeys((path.a, path.b, *rows_between(path, path.orders()).values())))


def test_the_runtime_takes_the_gap_and_the_program_almost_nothing() -> None:
    path = between("torch-xla", "jax")
    found = explain_pair(rows(every_row(path)), path)
    assert found.waterfall is not None and found.verdict is not None and found.verdict.word == "SLOWER"
    runtime, program = found.waterfall.bars
    assert (runtime.cause, program.cause) == ("runtime", "program")
    assert runtime.effect.ratio == pytest.approx(2.02 / 13.5, rel=0.01) and not runtime.below_noise
    assert program.effect.ratio == pytest.approx(1 / 1.01, rel=0.01) and program.below_noise
    assert found.waterfall.explained and abs(found.waterfall.residual.mean) < 0.01


def traced(row: Row) -> float:
    """Of 13.5 ms without tracing 3 are left, and on JAX's runtime 2; by an older XLA it is a quarter more."""
    if row == ("torch-xla", arm_of({"tracing": "off"})):
        return 3e-3
    return seconds_of(row) * (1.25 if row[1].release else 1.0)


def test_what_tracing_costs_is_told_apart_from_the_runtime() -> None:
    """It was one bar, "dispatch, tracing and the compiler's version", and most of the gap."""
    path = known_path("torch-xla", "jax")
    found = explain_pair(rows(every_row(path), traced), path)
    assert found.waterfall is not None
    worth = {b.cause: b.effect.ratio for b in found.waterfall.bars}
    assert list(worth) == ["tracing", "runtime", "compiler", "program"]
    meant = {"tracing": 3 / 13.5, "runtime": 1.25 * 2.02 / 3, "compiler": 1 / 1.25, "program": 1 / 1.01}
    assert worth == pytest.approx(meant, rel=0.01)


def test_where_tracing_cannot_be_switched_off_it_is_part_of_the_runtime() -> None:
    path = known_path("torch-xla", "jax")
    why = "its step cannot be dispatched without being traced"
    wanted = {row: why if row[1].get("tracing") else "" for row in every_row(path)}
    found = explain_pair(rows(wanted, traced), path)
    assert found.dropped == {"tracing": f"{why}; it is part of runtime"} and found.waterfall is not None
    assert [b.cause for b in found.waterfall.bars] == ["runtime", "compiler", "program"]
    # And without the program, which runs on JAX's runtime, neither has a bar.
    gone = {row: "no signature" if row[1].get("program") == "torch-xla" else "" for row in every_row(path)}
    lost = explain_pair(rows(gone, traced), path).dropped.keys()
    assert lost == {"tracing", "runtime", "compiler", "program"}


def test_where_the_other_compiler_is_not_installed_it_is_part_of_the_runtime() -> None:
    path = known_path("torch-xla", "jax")
    why = "not installed: `detente stacks add jax-0.7.1` makes its environment"
    found = explain_pair(rows({row: why if row[1].release else "" for row in every_row(path)}, traced), path)
    assert found.dropped == {"compiler": f"{why}; it is part of runtime"} and found.waterfall is not None
    worth = {b.cause: b.effect.ratio for b in found.waterfall.bars}
    assert worth == pytest.approx({"tracing": 3 / 13.5, "runtime": 2.02 / 3, "program": 1 / 1.01}, rel=0.01)


def test_a_short_budget_leaves_tracing_to_the_runtime() -> None:
    path = known_path("torch-xla", "jax")
    plain = between("torch-xla", "jax")
    cost = 5 * 10.0 * len(every_row(plain))
    found = choose(path, lambda row: 10.0, 5, cost)
    assert [c.code for c in found.path.causes] == ["runtime", "program"]
    assert found.untested.keys() == {"tracing", "compiler"}
    assert all("it is part of runtime" in why for why in found.untested.values())
    whole = choose(path, lambda row: 10.0, 5)
    assert [c.code for c in whole.path.causes] == ["tracing", "runtime", "compiler", "program"]
    assert not whole.untested


def test_factors_beside_the_program_share_the_gap() -> None:
    path = between("torch-xla", "jax", ["donation"])
    assert len(every_row(path)) == 6  # the two ends, and 2 x 2 on the runtime of jax
    found = explain_pair(rows(every_row(path)), path)
    assert found.waterfall is not None
    bars = {b.cause: b for b in found.waterfall.bars}
    assert bars["donation"].effect.ratio == pytest.approx(1 / 1.1, rel=0.01)
    total = sum(b.effect.mean for b in bars.values()) + found.waterfall.residual.mean
    assert total == pytest.approx(found.waterfall.gap.mean)


def test_what_factors_are_worth_on_one_stack() -> None:
    path = switched_off("jax", ["fusion", "donation"])
    found = explain_pair(rows(every_row(path)), path)
    assert found.a == "jax[donation=off+fusion=off]" and found.b == "jax" and found.waterfall is not None
    worth = {b.cause: b.effect.ratio for b in found.waterfall.bars}
    assert worth == pytest.approx({"fusion": 1 / 2.2, "donation": 1 / 1.1}, rel=0.01)


def test_one_row_against_itself_has_an_empty_waterfall_in_every_seed() -> None:
    for seed in range(20):
        found = explain_pair(rows([JAX], seed=seed), between("jax", "jax"))
        assert found.waterfall is not None and found.waterfall.bars == () and found.dropped == {}
        assert "nothing to switch" in found.reason
        assert abs(found.waterfall.gap.mean) < 0.01


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seconds": lambda row: 2e-3}, "there is no gap"),
        ({"seconds": lambda row: 2e-3 * (1.2 if row == XLA else 1), "spread": 0.3}, "the gap is not settled"),
        ({"noise": 20.0}, "the gap is not settled: too noisy"),
        ({"unsure": "the session is drifting"}, "the gap is not settled: the session is drifting"),
    ],
)
def test_a_gap_that_is_not_settled_has_no_bars(changes: dict[str, object], says: str) -> None:
    path = between("torch-xla", "jax")
    found = explain_pair(rows(every_row(path), **changes), path)  # type: ignore[arg-type]
    assert found.waterfall is None and found.reason.startswith(says), found.reason


def test_an_end_that_is_void_explains_nothing() -> None:
    path = between("torch-xla", "jax")
    wanted = {row: "" for row in every_row(path)} | {XLA: "torch-xla is void: wrong numbers"}
    found = explain_pair(rows(wanted), path)
    assert (found.waterfall, found.reason) == (None, "torch-xla is void: wrong numbers")


def test_a_cause_whose_check_failed_is_dropped_and_the_others_stand() -> None:
    path = between("torch-xla", "jax", ["donation", "fusion"])
    idle = {row: "fusion=off is not what it says" if row[1].get("fusion") else "" for row in every_row(path)}
    found = explain_pair(rows(idle), path)
    assert found.dropped == {"fusion": "fusion=off is not what it says"}
    assert found.waterfall is not None
    assert [b.cause for b in found.waterfall.bars] == ["runtime", "program", "donation"]


def test_without_its_program_nothing_can_be_said_of_a_runtime() -> None:
    path = between("torch-xla", "jax", ["donation"])
    gone = {row: "no such program" if row[1].get("program") == "torch-xla" else "" for row in every_row(path)}
    found = explain_pair(rows({**gone, ("jax", arm_of({"donation": "off"})): ""}), path)
    assert found.dropped == {"program": "no such program", "runtime": "no such program"}
    assert found.waterfall is not None and [b.cause for b in found.waterfall.bars] == ["donation"]
    # Who was not tested is in what is left, and the picture does not claim to be whole.
    assert not found.waterfall.explained


MINE = "mine.py:Outside"


def test_an_optimizer_outside_has_its_bar_and_the_rest_is_left() -> None:
    def seconds(row: Row) -> float:
        return 2.8e-3 if row[0] == MINE else 2.6e-3 if row[1].get("optimizer") else 2e-3

    path = narrowed(known_path(MINE, "jax"), ("optimizer",), False)
    found = explain_pair(rows(every_row(path), seconds), path)
    assert found.waterfall is not None and found.verdict is not None and found.verdict.word == "SLOWER"
    (bar,) = found.waterfall.bars
    assert bar.cause == "optimizer" and bar.effect.ratio == pytest.approx(2 / 2.6, rel=0.01)
    assert (
        found.waterfall.residual.ratio == pytest.approx(2.6 / 2.8, rel=0.01) and not found.waterfall.explained
    )
    assert (
        found.dropped.keys() == {"runtime", "program"} and "several executables" in found.dropped["program"]
    )


EAGER: Row = ("torch-eager", NO_ARM)


def seconds_on_a_cpu(row: Row) -> float:
    """The bridge's program is JAX's, but for PyTorch's products, which are worth 1.5; fusion is worth 1.25."""
    stack, arm = row
    if stack == "torch-eager":
        return 0.5
    worth = 0.6 if stack == "jax" or arm.get("torch-kernels") == "off" else 0.4
    return worth * (1.25 if arm.get("fusion") == "off" else 1.0)


def test_what_torchs_products_are_worth_is_not_the_texts() -> None:
    path = known_path("torch-eager", "jax")
    found = explain_pair(rows(every_row(path), seconds_on_a_cpu), path)
    assert found.waterfall is not None and found.waterfall.explained
    bars = {b.cause: b for b in found.waterfall.bars}
    assert bars["torch-kernels"].effect.ratio == pytest.approx(1.5, rel=0.01)
    assert bars["program"].below_noise and bars["runtime"].below_noise
    assert bars["fusion"].effect.ratio == pytest.approx(0.8, rel=0.01)


def test_where_the_bridge_brings_no_kernels_the_others_stand() -> None:
    path = known_path("torch-eager", "jax")
    why = "the number of kernels that the bridge brings must go from some to none"
    wanted = {row: why if row[1].get("torch-kernels") else "" for row in every_row(path)}
    found = explain_pair(rows(wanted, seconds_on_a_cpu), path)
    assert found.dropped == {"torch-kernels": f"{why}; it is part of program"} and found.waterfall is not None
    assert [b.cause for b in found.waterfall.bars] == ["runtime", "program", "fusion"]


def test_without_jaxs_program_nothing_is_switched_before_it() -> None:
    path = known_path("torch-eager", "jax")
    # The bridge does not run at all: what stands between the two is gone, but for what JAX has by itself.
    wanted = {row: "refused" if row[0] == "detente" else "" for row in every_row(path)}
    found = explain_pair(rows(wanted, seconds_on_a_cpu), path)
    assert found.dropped.keys() >= {"runtime", "program", "torch-kernels"}
    assert found.waterfall is not None


def test_effects_of_arms_one_by_one() -> None:
    fusion, donation = arm_of({"fusion": "off"}), arm_of({"donation": "off"})
    own, foreign = arm_of({"program": "jax"}), arm_of({"program": "torch-xla"})
    wanted: dict[Row, str] = {JAX: "", **{("jax", arm): "" for arm in (fusion, own, foreign)}}
    found = rows({**wanted, ("jax", donation): "donation=off is not what it says"})
    never: Row = ("jax", arm_of({"optimizer": "outside"}))
    effects = {e.row: e for e in arm_effects(found, (never,))}
    assert effects["jax[fusion=off]"].state == "measured"
    assert effects["jax[fusion=off]"].effect is not None
    assert effects["jax[fusion=off]"].effect.ratio == pytest.approx(2.2, rel=0.01)
    assert effects["jax[program=torch-xla]"].against == "jax[program=jax]"
    assert effects["jax[program=torch-xla]"].state == "below noise"
    assert effects["jax[program=jax]"].against == "jax"
    assert effects["jax[donation=off]"].state == "dropped"
    assert effects["jax[donation=off]"].reason == "donation=off is not what it says"
    assert effects["jax[optimizer=outside]"].state == "untested"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"blocks": (0, 1)}, "2 blocks, and 5 are needed"),
        ({"unsure": "the session is drifting"}, "is drifting"),
    ],
)
def test_an_arm_decides_no_more_than_a_verdict(changes: dict[str, object], why: str) -> None:
    """Under five blocks, or where the A/A pair drifts, no gap is settled, and arms were measured."""
    off: Row = ("jax", arm_of({"fusion": "off"}))
    (found,) = arm_effects(replace(rows([JAX, off]), **changes))  # type: ignore[arg-type]
    assert found.state == "untested" and why in found.reason
    # What it was stands there.
    assert found.effect is not None and found.effect.ratio == pytest.approx(2.2, rel=0.01)


def test_a_question_is_open_while_more_blocks_may_settle_it() -> None:
    path = between("torch-xla", "jax")
    made = rows(every_row(path))
    assert not open_still(made, path), "its gap is settled"
    assert open_still(replace(made, blocks=BLOCKS[:4]), path), "four blocks decide nothing"
    # An A/A pair that lies further apart than the two.
    assert open_still(replace(made, noise=20.0), path)
    assert open_still(replace(made, unsure="the session is drifting: its A/A pair lies apart"), path)
    # What no block can settle: an end without figures, and a row beside itself.
    gone = {row: m for row, m in made.medians.items() if row != JAX}
    assert not open_still(replace(made, medians=gone, blocks=BLOCKS[:4]), path)
    assert not open_still(replace(made, blocks=BLOCKS[:4]), replace(path, b=path.a))


def test_the_gap_is_of_the_verdicts_blocks_and_at_its_alpha() -> None:
    path = between("torch-xla", "jax")
    made = rows(every_row(path), spread=0.02)
    # Blocks that are not whole, on another machine.
    odd = {
        r: {b: s * (3 if r == XLA and b > 4 else 1) for b, s in m.items()} for r, m in made.medians.items()
    }
    told = explain_pair(replace(made, medians=odd, blocks=BLOCKS[:5], share=1 / 3), path)
    assert told.verdict is not None and told.verdict.ratio is not None and told.waterfall is not None
    assert told.verdict.blocks == told.waterfall.blocks == 5
    gap = told.waterfall.gap
    assert math.exp(-gap.mean) == pytest.approx(told.verdict.ratio) and gap.interval is not None
    assert [math.exp(-x) for x in (gap.interval.high, gap.interval.low)] == pytest.approx(
        [told.verdict.low, told.verdict.high]
    )


def test_an_arm_that_died_early_leaves_no_picture_of_one_block() -> None:
    path = between("torch-xla", "jax")
    made = rows(every_row(path))
    died = {r: ({0: m[0]} if r[1] else m) for r, m in made.medians.items()}
    told = explain_pair(replace(made, medians=died), path)
    assert told.waterfall is not None and told.waterfall.blocks == 10 and not told.waterfall.explained
    assert "ran well in 1 of 10 blocks" in told.dropped["program"]


def test_the_twin_is_paid_for_before_causes_are_chosen() -> None:
    path = between("torch-xla", "jax")
    assert choose(path, lambda row: 10.0, 5, 200).path.causes
    some = choose(path, lambda row: 10.0, 5, 200, besides=(XLA,))
    assert some.path.causes == () and some.seconds == 150
    assert some.untested["program"] == "with it 5 blocks take 250 s, and the budget is 200 s"
    # Of a request: four rows of 30 s each, five blocks, and the twin is a fifth.
    asked = ask("gpt2", "tiny", "train-step", "fp32", "cpu", "torch-xla", "jax")
    request = Request(("gpt2",), ("torch-xla", "jax"), blocks=5, budget_s=700)
    for aa, tested in ((True, 2), (False, 4)):
        chosen, _ = _rows(asked, replace(request, aa=aa), False, (), {})
        assert len(chosen) == tested


def test_a_budget_takes_what_promises_most_and_lists_the_rest() -> None:
    path = switched_off("jax", ["fusion", "donation", "library-kernels"])
    everything = choose(path, lambda row: 10.0, blocks=5)
    assert len(everything.rows) == 8 and everything.seconds == 400 and everything.untested == {}
    some = choose(path, lambda row: 10.0, blocks=5, budget_s=250)
    assert [c.code for c in some.path.causes] == ["fusion", "library-kernels"] and some.seconds <= 250
    assert "budget is 250 s" in some.untested["donation"]
    other = choose(path, lambda row: 10.0, 5, 250, lambda c: {"donation": 1.0}.get(c.code, 0.1))
    assert "donation" in {c.code for c in other.path.causes}


def test_a_row_under_two_arms_is_compared_where_it_can_be_and_never_left_out() -> None:
    both, one = ("jax", arm_of({"fusion": "off", "donation": "off"})), ("jax", arm_of({"fusion": "off"}))
    alone = arm_effects(rows([JAX, both]))
    assert {(e.factor, e.state) for e in alone} == {("fusion", "untested"), ("donation", "untested")}
    assert all("was not measured" in e.reason for e in alone)
    told = [(e.factor, e.row, e.state) for e in arm_effects(rows([JAX, one, both])) if "donation" in e.row]
    assert told == [("donation", "jax[donation=off+fusion=off]", "measured")]


def test_a_runtime_is_tested_with_its_program_or_not_at_all() -> None:
    path = between("torch-xla", "jax", ["donation"])
    some = choose(path, lambda row: 10.0, blocks=5, budget_s=200)
    assert [c.code for c in some.path.causes] == ["runtime", "program"]
    assert some.rows == (
        XLA,
        JAX,
        ("jax", arm_of({"program": "torch-xla"})),
        ("jax", arm_of({"program": "jax"})),
    )
    none = choose(path, lambda row: 10.0, blocks=5, budget_s=100)
    assert none.path.causes == () and none.untested.keys() == {"runtime", "program", "donation"}


def test_what_comes_before_a_program_is_tested_with_it_or_not_at_all() -> None:
    path = known_path("torch-eager", "jax")
    whole = choose(path, lambda row: 10.0, blocks=5)
    assert whole.path.causes == path.causes and len(whole.rows) == 7
    some = choose(path, lambda row: 10.0, 5, 160, lambda c: 0.01 if c.code == "fusion" else 0.3)
    assert [c.code for c in some.path.causes] == ["runtime", "program"]
    assert "it is part of program" in some.untested["torch-kernels"]
    none = choose(path, lambda row: 10.0, blocks=5, budget_s=20)
    assert none.path.causes == () and none.untested.keys() == {
        "runtime",
        "program",
        "torch-kernels",
        "fusion",
    }
    assert none.untested["torch-kernels"] == "program is not tested"


def test_more_causes_than_four_run_in_some_orders_only() -> None:
    causes = tuple(Cause(f"c{k}", "", ((f"c{k}", "off"),)) for k in range(6))
    path = Path(("jax", NO_ARM), ("jax", NO_ARM), (Cause("runtime", "", first=True), *causes))
    assert all(order[0] == "runtime" for order in path.orders())
    assert len(path.orders()) == 12 and len(rows_between(path, path.orders())) < 2**6


def test_an_explanation_of_a_busy_session_calls_nothing_the_same() -> None:
    path = between("torch-xla", "jax")
    made = rows(every_row(path), lambda row: 2e-3)
    assert explain_pair(made, path).verdict.word == "SAME"  # type: ignore[union-attr]
    busy = explain_pair(replace(made, busy="others used up to 50 % of this machine"), path)
    assert busy.verdict is not None and busy.verdict.word == "UNDECIDED"
    assert busy.never_same == "others used up to 50 % of this machine" in busy.verdict.reason
    unknown = explain_pair(replace(made, noise=None), path)
    assert "A/A pair" in unknown.never_same and unknown.verdict is not None
    assert unknown.verdict.word == "UNDECIDED"
