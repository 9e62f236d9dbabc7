"""The optimizer of a step as a rule, and another one where the optimizer became another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from detente.bridge.live.guard import watch
from detente.bridge.live.optimizer_reads import noting, reads
from detente.bridge.live.optimizer_state import tensors_in
from detente.bridge.live.ran import Names
from detente.bridge.live.walk import sources
from detente.bridge.optim.accept import own_step
from detente.bridge.optim.first import TorchsStep
from detente.bridge.optim.hyper import Stale
from detente.bridge.optim.rule import trace
from detente.bridge.optim.update import Update
from detente.bridge.refusal import Refused, refuse
from detente.bridge.state.birth import Births
from detente.bridge.state.place import Placed
from detente.bridge.step.attending import Attending
from detente.bridge.step.rehearse import rehearsed


class Ruled(Attending):
    """What the live optimizer does next is traced, or known from before."""

    def _torchs_state(self) -> Any:
        """What the live optimizer holds, as another rule's where it holds other things than this one's. A dictionary
        that was loaded into it shares these tensors: who reads them there gets what was trained, as in eager."""
        held = list(self._moments_of_now())
        watch(held, self._moments)
        self._ask_of_moments(held)
        params = dict(self.model.named_parameters())
        try:
            found = self._rule.read_state(self.optimizer, params)
        except Stale:
            self._turn()
            found = self._rule.read_state(self.optimizer, params)
        watch(self._rule.elsewhere(), self._moments)  # behind it: somebody may have put another one there
        return found

    def _moments_of_now(self) -> Iterator[torch.Tensor]:
        """The live tensors that the optimizer's step writes: of its state, of its attributes and of its groups."""
        yield from tensors_in(self.optimizer)
        yield from self._rule.elsewhere()

    def _turn(self) -> None:
        """The rule of what the live optimizer does next: one of before, or traced. A step that no graph can make, of an
        optimizer that is traced as a whole, is torch's."""
        moved = self._reads.moved
        known = None if moved else self._variants.rules(self._fits)
        if known is None:
            try:
                known = self._traced()
            except Refused as why:
                if not self._rule.together or self._rule.once:
                    raise
                self._moving.warn(f"torch takes step {self.count} itself: {why.reasons[0].what}")
                known = self._around_rule(TorchsStep(type(self.optimizer).__name__))
        if "_held_state" in vars(self):  # not while the first one is being read
            self._none_left_behind(known, self._state.by_torch_names()[1], self.weights.tensors)
        if moved:
            self._told_reads += 1
            if self._told_reads == 2:
                self._moving.warn(f"what the step of {self._rule.name} reads in Python changes between steps")
        self._variants.turn(self._rule)
        if moved:
            self._variants.parked.clear()  # those are of what it said before
        self._follow(known)
        self._variants.turned(known)

    def _none_left_behind(self, rule: Update, averages: Any, names: Iterable[str]) -> None:
        """Asked before ``rule`` is followed. Raises Refused where it moves an average of before no further."""
        still = [] if rule.first else rule.left_behind(averages, names)
        if still:
            raise refuse(
                "module-changed",
                f"{still[0]} was frozen, or left the optimizer, while ema= keeps its average, which AveragedModel "
                "would go on moving towards the weight",
                hint="a group of its own with lr=0 and weight_decay=0 holds it still instead",
            )

    def _follow(self, rule: Update) -> None:
        """The optimizer as a rule, and the program that makes its first state."""
        self._registered, self._steps_by = RemovableHandle.next_id, own_step(self.optimizer)
        self._reads = reads(self.model, self.optimizer, self._rule_ran, attributes=not rule.together)
        self._rule, self._births = rule, Births(rule.init, frozenset(rule.programs))
        self._grouped = [list(group["params"]) for group in self.optimizer.param_groups]

    def _begun(self, placed: Placed) -> Update:
        """The rule that a step begins with: that of a first step that torch takes, where no other can be made."""
        try:
            return self._traced()
        except Refused as why:
            parts = self.options.accumulate
            return self._around_rule(
                rehearsed(self.model, self.loss, self.optimizer, placed.to_capture, parts, why)
            )

    def _traced(self) -> Update:
        self._rule_ran = Names()
        with noting(self.model, self.optimizer) as ran:
            rule = trace(self.optimizer, self.model.named_parameters(), self._gone())
        self._rule_ran = ran.names()
        return self._around_rule(rule)

    def _gone(self) -> set[int]:
        """Ids of parameters that stand in the optimizer's groups while neither the module nor the loss has them any
        more, in the middle of training: a head was replaced, weights were tied. They have no gradient, and torch passes
        over them. At ``compile`` such a one is a mistake, and one that has a gradient somebody else trains: refused."""
        if "_grouped" not in vars(self):
            return set()
        own = set(map(id, self.model.parameters()))
        groups = self.optimizer.param_groups
        gone = {id(p) for group in groups for p in group["params"] if p.grad is None} - own
        return gone - set(map(id, sources(self.model, self.loss).tensors.values())) if gone else gone

    def _around_rule(self, rule: Any) -> Update:
        options = self.options
        return Update(
            rule,
            clip_norm=options.clip_norm,
            clip_value=options.clip_value,
            ema=options.ema,
        )

    def _fits(self, rule: Update) -> bool:
        """Whether a rule of before is that of the live optimizer again."""
        try:
            rule.read_state(self.optimizer, dict(self.model.named_parameters()))
            rule.hyper(self.optimizer)
        except Stale:
            return False
        return True
