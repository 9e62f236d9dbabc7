"""No stack runs another's program yet: an arm that asks for it is refused, the control among them."""

from __future__ import annotations

import pytest

from detente.records.arm import read_arm
from detente.stacks.jax_form import form_of
from detente.stacks.protocol import Unavailable


@pytest.mark.parametrize(
    "named", ["jax[program=jax]", "jax[program=torch-xla]", "jax[donation=off+program=detente]"]
)
def test_a_row_is_never_called_after_a_program_that_it_does_not_run(named: str) -> None:
    stack, arm = read_arm(named)
    with pytest.raises(Unavailable, match=r"jax cannot be built under program="):
        form_of(stack, arm)
