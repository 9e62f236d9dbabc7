"""An arm as the form of a step: each of its settings changes the form that the stack has by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from detente.records.arm import Arm
from detente.stacks.protocol import Unavailable

Form = TypeVar("Form")


def form_of_arm(
    stack: str, arm: Arm, forms: Mapping[tuple[str, str], Callable[[Form], Form]], form: Form
) -> Form:
    """``form`` under an arm. Raises Unavailable for a factor or a setting that this stack cannot be built under.

    >>> from detente.records.arm import arm_of
    >>> form_of_arm("jax", arm_of({"fusion": "off"}), {("fusion", "off"): lambda form: form + 1}, 0)
    1
    """
    for factor, setting in arm.settings:
        if (factor, setting) not in forms:
            raise Unavailable(f"{stack} cannot be built under {factor}={setting}")
        form = forms[factor, setting](form)
    return form
