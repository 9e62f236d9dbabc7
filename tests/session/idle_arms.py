"""A stack whose arm does nothing: XLA takes the name of a pass that it does not know in silence."""

from __future__ import annotations

from typing import ClassVar

from detente.stacks.catalogue import STACKS
from detente.stacks.jax_form import FORMS, Forms, without
from detente.stacks.jax_jit import JaxJit


class IdleFusion(JaxJit):
    entry = STACKS["jax"]
    forms: ClassVar[Forms] = {**FORMS, ("fusion", "off"): without("cpu-fusion")}
