"""Where a step's seconds go, by part of the module and by kind of work."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.lower.precision import x64
from detente.bridge.program.program import Compiled
from detente.bridge.refusal import refuse
from detente.bridge.state.state import State
from detente.bridge.watched import watch
from detente.programs.module import ProgramError
from detente.programs.shown_profile import profile_lines
from detente.programs.step_profile import StepProfile, of_xla


@dataclass(frozen=True)
class Profile:
    """``of``: the step, cut up. Printed it is tables by kind of work, by direction and by part, in milliseconds."""

    of: StepProfile

    def __str__(self) -> str:
        return "\n".join(profile_lines({"bridge": self.of}))


def profile_step(
    compiled: Compiled, state: State, batch: list[Any], hyper: Any, seed: int, count: int, steps: int
) -> Profile:
    """Of some steps on copies of the state, which stays as it is; the copies hold its memory once more meanwhile.

    Raises Refused (``profile``) where the runtime tells of no operation: XLA's CPU and GPU clients do.
    """
    own, fixed = compiled.parts(state.values)
    with x64():
        held, optimizer = jax.tree.map(jnp.copy, (own, state.optimizer))
    numbers = itertools.count(count)

    def step() -> Any:
        nonlocal held, optimizer
        number = np.uint32(next(numbers))
        held, optimizer, *told = compiled.executable(
            held, optimizer, fixed, batch, hyper, np.uint32(seed), number
        )
        return held, optimizer, told

    try:
        data, facts = watch(jax, step, steps)
    except RuntimeError as error:  # one profile at a time: somebody's own is running
        raise refuse("profile", f"JAX's profiler could not run: {error}") from error
    if data is None:
        raise refuse("profile", "the runtime wrote no profile")
    (module,) = compiled.executable.runtime_executable().hlo_modules()
    try:
        return Profile(of_xla(module.as_serialized_hlo_module_proto(), data, facts))
    except ProgramError as error:
        raise refuse("profile", f"the profile of this runtime cannot be read: {error}") from error
