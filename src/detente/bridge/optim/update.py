"""Clipping before the optimizer's rule and an average after it, with the rule's own interface.

A ``Update`` stands wherever a ``Rule`` does: ``apply`` clips the gradients, applies the rule and moves the
average of the weights. The average lives in the state, beside the optimizer's leaves of each parameter, so it is
stacked, donated, sharded and saved like them, and never written into the torch optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch

from detente.bridge.lower.precision import x64
from detente.bridge.optim import ema
from detente.bridge.optim.clip import clip_norm, clip_value
from detente.bridge.optim.first import TorchsStep
from detente.bridge.optim.joint_rule import JointRule
from detente.bridge.optim.layout import from_torch
from detente.bridge.optim.program import Leaf
from detente.bridge.optim.recording import aval_of
from detente.bridge.optim.rule import Rule, State
from detente.bridge.optim.run import unless


@dataclass(frozen=True)
class Update:
    """``rule`` with what surrounds it. ``clip_norm`` and ``norm_type`` as ``torch.nn.utils.clip_grad_norm_``,
    ``clip_value`` as ``clip_grad_value_`` (the value is cut before the norm is taken), ``ema`` a decay in [0, 1]
    as ``torch.optim.swa_utils.get_ema_multi_avg_fn``. None leaves a part out."""

    rule: Rule | JointRule | TorchsStep
    clip_norm: float | None = None
    norm_type: float = 2.0
    clip_value: float | None = None
    ema: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, not {value}")
        if self.ema is not None and not 0.0 <= self.ema <= 1.0:
            raise ValueError(f"ema is a decay in [0, 1], not {self.ema}")

    @property
    def separate(self) -> bool:
        """Whether each parameter can be updated by itself, before the other gradients exist."""
        return self.clip_norm is None and not self.together

    # the rule's own
    @property
    def together(self) -> bool:
        """Whether one program updates all parameters at once."""
        return self.rule.together

    @property
    def once(self) -> bool:
        """Whether it is the rule of one step: the first, which makes the state."""
        return self.first or (isinstance(self.rule, JointRule) and not self.rule.joint.steady)

    @property
    def first(self) -> bool:
        """Whether the next step is one that torch takes."""
        return isinstance(self.rule, TorchsStep)

    def taken(self) -> None:
        """torch has taken its step."""
        assert isinstance(self.rule, TorchsStep)
        self.rule.flags["taken"] = True

    def follow(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        self.rule.follow(optimizer, state)

    def numbers_into(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        self.rule.numbers_into(optimizer, state)

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def programs(self) -> Mapping[str, Any]:
        return self.rule.programs

    @property
    def group_of(self) -> Mapping[str, int]:
        return self.rule.group_of

    def hyper(self, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
        return self.rule.hyper(optimizer)

    def due(self, optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], str, int | float]]:
        """As ``Rule.due``."""
        return self.rule.due(optimizer)

    def stackable(self, members: Iterable[str]) -> bool:
        return self.rule.stackable(members)

    def program_of(self, members: Sequence[str]) -> Any:
        return self.rule.program_of(members)

    def init(self, params: Mapping[str, jax.Array], hyper: Sequence[Any]) -> State:
        """As ``Rule.init``; an average begins as the parameter."""
        state = self.rule.init(params, hyper)
        if self.ema is not None:
            for name, entry in state.items():
                entry.update(ema.begin(params[name]))
        return state

    def read_state(
        self,
        optimizer: torch.optim.Optimizer,
        params: Mapping[str, torch.Tensor],
        hyper: Sequence[Any] | None = None,
    ) -> State:
        """As ``Rule.read_state``; an average begins anew, at the parameter."""
        then = {"hyper": hyper} if isinstance(self.rule, Rule) else {}
        state = self.rule.read_state(optimizer, params, **then)
        if self.ema is not None:
            with x64():
                for name, entry in state.items():
                    param = params[name].detach()
                    entry.update(ema.begin(from_torch({"p": param}, (Leaf("p", aval_of(param)),))["p"]))
        return state

    def kept(self, old: State, new: State) -> State:
        """``new`` (read from torch, which has no averages) with the averages of ``old``."""
        if self.ema is None:
            return new
        mine = (ema.AVERAGE, ema.COUNT)
        begun = max((int(e[ema.COUNT]) for e in old.values() if ema.COUNT in e), default=0)

        def of(name: str, entry: dict[str, Any]) -> dict[str, Any]:
            if name in old and ema.AVERAGE in old[name]:
                return entry | {k: old[name][k] for k in mine}
            # A layer that thaws, or joins: AveragedModel has had its average all along, which is its weight of now.
            with x64():
                return entry | {ema.COUNT: jnp.full_like(entry[ema.COUNT], begun)}

        return {name: of(name, entry) for name, entry in new.items()}

    def resting(self, state: State, names: Iterable[str]) -> list[str]:
        """Of the averages in ``state`` those that a program does not move by its update: their weights take no part in
        its loss (the head of another task). ``AveragedModel`` moves them in every step all the same."""
        moved = set(names)
        return (
            [] if self.ema is None else [n for n, e in state.items() if n not in moved and ema.AVERAGE in e]
        )

    def rested(
        self,
        state: State,
        params: Mapping[str, jax.Array],
        names: Iterable[str],
        skip: jax.Array | None = None,
    ) -> State:
        """``state`` with those moved towards their weights; ``skip`` as in ``apply``."""
        if self.ema is None:
            return state
        moved = {n: ema.advance(state[n], params[n], self.ema) for n in self.resting(state, names)}
        return {**state, **{n: {**state[n], **_unless(skip, new, state[n])} for n, new in moved.items()}}

    def left_behind(self, state: State, names: Iterable[str]) -> list[str]:
        """Which of ``names`` have moved an average in ``state`` and are not updated by this rule: nothing would move it
        on, where ``AveragedModel`` goes on towards the weight."""
        held = [n for n in names if n not in self.programs and ema.AVERAGE in state.get(n, {})]
        return [n for n in held if int(state[n][ema.COUNT]) > 0]

    def advanced(self, state: State, params: Mapping[str, jax.Array]) -> State:
        """The averages moved once, after an update that was made elsewhere (``step.eager``)."""
        if self.ema is None:
            return state
        with x64():
            return {n: {**e, **ema.advance(e, params[n], self.ema)} for n, e in state.items()}

    def elsewhere(self) -> list[torch.Tensor]:
        return self.rule.elsewhere()

    def replaced(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.rule.replaced(optimizer)

    def write_state(
        self,
        optimizer: torch.optim.Optimizer,
        state: State,
        params: Mapping[str, torch.Tensor],
        whole: bool = False,
    ) -> None:
        """As ``Rule.write_state``; the average is not the optimizer's and is left out (see ``averages``)."""
        self.rule.write_state(optimizer, state, params, whole)

    def clip_live(self, parameters: Iterable[torch.Tensor]) -> None:
        """The same clipping on torch's own ``.grad``, in place: what an eager step does before ``optimizer.step()``."""
        mine = list(parameters)
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(mine, self.clip_value)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(mine, self.clip_norm, self.norm_type)

    def averages(self, state: State) -> dict[str, jax.Array]:
        """The averaged weights by parameter name. Raises ValueError where no average is kept."""
        if self.ema is None:
            raise ValueError("no average is kept: pass ema=0.999 (a decay) when compiling")
        return {name: entry[ema.AVERAGE] for name, entry in state.items()}

    def ahead(
        self,
        names: Iterable[str],
        state: State,
        hyper: Sequence[Any],
        stacks: Mapping[str, Sequence[str]],
    ) -> dict[str, tuple[Any, ...]] | None:
        """As ``Rule.ahead``; None of a rule that takes its parameters together."""
        return self.rule.ahead(names, state, hyper, stacks) if isinstance(self.rule, Rule) else None

    def apply(
        self,
        params: Mapping[str, jax.Array],
        grads: Mapping[str, jax.Array | None],
        state: State,
        hyper: Sequence[Any],
        stacks: Mapping[str, Sequence[str]] | None = None,
        ahead: Mapping[str, tuple[Any, ...]] | None = None,
        skip: jax.Array | None = None,
    ) -> tuple[dict[str, jax.Array], State]:
        """As ``Rule.apply``. The norm is over all gradients given, also of parameters that are not the optimizer's."""
        if self.clip_value is not None:
            grads = clip_value(grads, self.clip_value)
        if self.clip_norm is not None:
            grads, _ = clip_norm(grads, self.clip_norm, self.norm_type)
        more = {"ahead": ahead} if ahead is not None else {}
        new, after = self.rule.apply(params, grads, state, hyper, stacks, skip=skip, **more)
        if self.ema is not None:
            for name in after:
                if name in params:
                    moved = ema.advance(state[name], new[name], self.ema)
                    after[name] = {**after[name], **_unless(skip, moved, state[name])}
        return new, after


def _unless(skip: jax.Array | None, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    return {key: unless(skip, value, old[key]) for key, value in new.items()}
