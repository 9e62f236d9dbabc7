"""The table of factors: every row can be named, and its check tells a switched factor from one that did nothing."""

from __future__ import annotations

import re

import pytest

from detente.environments.recipe import RECIPES
from detente.judge.meant import MEANT
from detente.judge.rules import RULES
from detente.records.arm import NO_ARM, arm_of
from detente.records.contract import CONTRACTS
from detente.records.fault import UsageFault
from detente.stacks.catalogue import STACKS
from detente.stacks.factors import FACTORS, STACK, bases_of, check_settings, environment_of, failed_checks
from detente.stacks.jax_form import FORMS, JaxForm, form_of
from detente.stacks.protocol import Unavailable
from detente.stacks.torch_form import FORMS as OF_TORCH
from detente.stacks.torch_form import TorchForm, torch_form

JAX = {
    "executables": 1,
    "kernels": 326,
    "products": 10,
    "loops": 0,
    "alias_bytes": 1422340,
    "bridge_calls": 9,
    "program": "a",
    "work": "a",
    "traced": 1300,
    "attention_calls": 12,
    "convolutions": 53,
    "channels_last": 0,
    "compiler": "0.10.2",
}
# Factor -> the setting, and what the compiler made under it where it was switched.
SWITCHED = {
    "program": ("torch-xla", {"work": "b"}),
    "tracing": ("off", {"traced": 90}),
    "compiler": ("0.7.1", {"compiler": "0.7.1"}),
    "fusion": ("off", {"kernels": 1032}),
    "library-kernels": ("off", {"products": 39}),
    "torch-kernels": ("off", {"bridge_calls": 0}),
    "donation": ("off", {"alias_bytes": 0}),
    "optimizer": ("outside", {"executables": 2}),
    "loop": ("scan", {"loops": 2}),
    "attention": ("decomposed", {"attention_calls": 0}),
    "layout": ("channels-last", {"channels_last": 53}),
}
OTHER = {**JAX, "program": "b", "work": "b"}


def test_every_factor_is_described_and_tested_here() -> None:
    assert SWITCHED.keys() == FACTORS.keys()
    regions = {c.region for c in CONTRACTS.values()}
    for code, factor in FACTORS.items():
        assert code == factor.code and factor.what and factor.measured and factor.guess > 0
        assert set(factor.stacks) <= STACKS.keys() and set(factor.regions) <= regions
        check_settings(arm_of({code: SWITCHED[code][0]}))


def test_every_setting_of_a_jax_stack_has_a_form() -> None:
    wanted = {(f.code, s) for f in FACTORS.values() if "jax" in f.stacks for s in f.settings if s != STACK}
    assert wanted == FORMS.keys()
    # Another release is another interpreter, and the form is the same.
    mine = [(code, s) for code, s in wanted if s not in FACTORS[code].environments]
    assert all(form_of("jax", arm_of({code: setting})) != JaxForm() for code, setting in mine)


@pytest.mark.parametrize("code", FACTORS)
def test_a_check_holds_where_the_factor_was_switched_and_only_there(code: str) -> None:
    setting, moved = SWITCHED[code]
    arm = arm_of({code: setting})
    base = ("torch-xla", NO_ARM) if code == "program" else ("jax", NO_ARM)
    before = OTHER if code == "program" else JAX
    assert failed_checks("jax", arm, {base: before, ("jax", arm): {**JAX, **moved}}) == ()
    (why,) = failed_checks("jax", arm, {base: before, ("jax", arm): JAX})
    assert why.startswith(f"{code}={setting} is not what it says") and FACTORS[code].check.title in why


def test_every_setting_of_a_torch_stack_has_a_form() -> None:
    for stack in ("torch-eager", "torch-compile", "torch-compile-model"):
        wanted = {(f.code, s) for f in FACTORS.values() if stack in f.stacks for s in f.settings}
        assert wanted == OF_TORCH.keys()
        assert all(torch_form(stack, arm_of({code: s})) != TorchForm() for code, s in wanted)
    with pytest.raises(Unavailable, match="torch-compile cannot be built under donation=off"):
        torch_form("torch-compile", arm_of({"donation": "off"}))


def test_another_compiler_is_no_other_program() -> None:
    """A model that a release of JAX and Flax writes down otherwise would be a second cause."""
    old = arm_of({"compiler": "0.7.1"})
    rewritten = {**JAX, "compiler": "0.7.1", "work": "b"}
    (why,) = failed_checks("jax", old, {("jax", NO_ARM): JAX, ("jax", old): rewritten})
    assert "operations that the compiler was given must stay the same: a before, b under the arm" in why
    (why,) = failed_checks("jax", old, {("jax", NO_ARM): {**JAX, "work": "b"}, ("jax", old): JAX})
    assert "the release of jaxlib must be another one: 0.10.2 before, 0.10.2 under the arm" in why


def test_a_setting_of_another_environment_has_a_recipe() -> None:
    named = {e for f in FACTORS.values() for e in f.environments.values()}
    assert named and named <= RECIPES.keys()
    for factor in FACTORS.values():
        assert factor.environments.keys() <= set(factor.settings)
        for setting, environment in factor.environments.items():
            assert environment_of("default", arm_of({factor.code: setting})) == environment
    assert environment_of("torch-xla", arm_of({"tracing": "off"})) == "torch-xla"


def test_a_figure_stands_in_the_reason() -> None:
    off = arm_of({"fusion": "off"})
    (why,) = failed_checks("jax", off, {("jax", NO_ARM): JAX, ("jax", off): {**JAX, "kernels": 330}})
    assert "326 before, 330 under the arm" in why


def test_what_was_not_there_before_cannot_be_switched_off() -> None:
    off = arm_of({"donation": "off"})
    nothing = {**JAX, "alias_bytes": 0}
    assert failed_checks("jax", off, {("jax", NO_ARM): nothing, ("jax", off): nothing})


def test_each_factor_of_an_arm_is_held_against_the_arm_without_it() -> None:
    both = arm_of({"donation": "off", "fusion": "off"})
    bases = bases_of("jax", both)
    assert bases == {
        "donation": ("jax", arm_of({"fusion": "off"})),
        "fusion": ("jax", arm_of({"donation": "off"})),
    }
    unfused = {**JAX, "kernels": 1032}
    facts = {
        ("jax", both): {**unfused, "alias_bytes": 0},
        bases["donation"]: unfused,
        bases["fusion"]: {**JAX, "alias_bytes": 0},
    }
    assert failed_checks("jax", both, facts) == ()
    # Where fusion was off already, the second factor did nothing.
    assert len(failed_checks("jax", both, {**facts, bases["fusion"]: unfused})) == 1


def test_missing_evidence_is_a_failed_check() -> None:
    off = arm_of({"fusion": "off"})
    (why,) = failed_checks("torch-eager", off, {})
    assert "there is no captured program" in why


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"fusoin": "off"}, "did you mean 'fusion'"), ({"fusion": "on"}, "fusion cannot be 'on'")],
)
def test_a_wrong_name_is_a_usage_fault(settings: dict[str, str], says: str) -> None:
    with pytest.raises(UsageFault, match=re.escape(says)):
        check_settings(arm_of(settings))


def test_a_stack_says_what_it_cannot_be_built_under() -> None:
    with pytest.raises(Unavailable, match="cannot be built under fusion=sideways"):
        form_of("jax", arm_of({"fusion": "sideways"}))


def test_what_is_meant_names_factors_and_rules_that_exist() -> None:
    assert MEANT.keys() <= FACTORS.keys()
    assert all(rules <= RULES.keys() for rules in MEANT.values())
