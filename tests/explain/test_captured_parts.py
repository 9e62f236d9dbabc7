"""Times of a step in several programs: those of the one that is divided."""

from __future__ import annotations

import pytest

from detente.explain.captured_parts import of_program
from detente.programs.xplane import Profile

GRADIENT, UPDATE = ("jit_gradient", "fusion.1"), ("jit_update", "fusion.1")
BOTH = Profile(
    {GRADIENT: 5e-3, UPDATE: 50e-3}, {GRADIENT: 5, UPDATE: 5}, 0.06, {GRADIENT: 5e-3, UPDATE: 50e-3}
)


def test_kernels_of_another_program_that_are_called_the_same_are_not_counted() -> None:
    """The program that ran longest was taken: the gradient's `fusion.1` was told the update's 10 ms."""
    assert of_program(BOTH, "jit_gradient", alone=False).of_step() == {"fusion.1": pytest.approx(1e-3)}
    assert of_program(BOTH, "jit_update", alone=False).of_step() == {"fusion.1": pytest.approx(10e-3)}
    assert of_program(BOTH, "jit_gradient", alone=False).busy == pytest.approx(5e-3)


def test_a_name_that_nobody_ran_has_no_times_unless_it_is_the_only_program() -> None:
    assert of_program(BOTH, "jit_other", alone=False).of_step() == {}
    # A runtime may call it otherwise; what took longest of one step is that step.
    assert of_program(BOTH, "jit_other", alone=True).of_step() == {"fusion.1": pytest.approx(10e-3)}
    assert of_program(BOTH, "jit_gradient", alone=True).of_step() == {"fusion.1": pytest.approx(1e-3)}
