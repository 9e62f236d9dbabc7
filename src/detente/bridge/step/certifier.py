"""When a program is certified, and from which state: its first step, between that step and the next.

A certificate is made once per program. What it needs of the step is held until the next call: the state before it
(the live module and optimizer, where they still hold it; else a copy on the host), the numbers, the batch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from detente.bridge.capture.batch import flatten
from detente.bridge.certify import certify, short
from detente.bridge.certify.certificate import Certificate
from detente.bridge.certify.room import Room, too_little
from detente.bridge.choose.memory import memory
from detente.bridge.copies import copied
from detente.bridge.graph import Graph
from detente.bridge.lower.driver import every_node
from detente.bridge.lower.precision import in_tf32, x64
from detente.bridge.refusal import Refused
from detente.bridge.state.birth import Births
from detente.bridge.state.meta import fill
from detente.bridge.state.place import from_jax, to_jax
from detente.bridge.state.state import State
from detente.bridge.step.options import Options
from detente.bridge.step.variants import Variant

if TYPE_CHECKING:
    from detente.bridge.optim.update import Update


@dataclass(frozen=True)
class Before:
    """The state before a step, on the host by torch's names; ``optimizer`` is None where nothing was stepped."""

    values: dict[str, torch.Tensor]
    optimizer: dict[str, dict[str, Any]] | None
    rule: Update

    @staticmethod
    def of(state: State, rule: Update, stepped: bool) -> Before:
        values, optimizer = state.by_torch_names()
        held = {n: {k: np.array(v) for k, v in leaves.items()} for n, leaves in optimizer.items()}
        return Before({n: from_jax(v) for n, v in values.items()}, held if stepped else None, rule)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Into a copy of the live module and optimizer."""
        live = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for name, tensor in live.items():
                fill(tensor, self.values[name])
        if self.optimizer is not None:
            self.rule.write_state(optimizer, self.optimizer, dict(model.named_parameters()), whole=True)


@dataclass
class Open:
    """A step that waits for its certificate, as it was then: a scheduler may have moved since."""

    variant: Variant
    batch: Any
    arrays: list[Any]
    count: int
    hyper: Any
    groups: list[dict[str, Any]]
    mode: tuple[bool, ...]
    before: Before | None
    default: torch.dtype  # what torch made floats of
    cut: short.Cut | None = None
    missing: str = ""  # of memory for a full one
    loss: Any = None
    word: Any = None  # of the fault that torch raises


@dataclass(frozen=True)
class Certifier:
    """Makes certificates for the programs of one step. ``gradients(variant, values, arrays, count)`` are the compiled
    program's, by torch's names; ``step_of`` makes a step of the arguments of ``Step``."""

    model: nn.Module
    loss: Callable[[Any, Any], Any]
    optimizer: torch.optim.Optimizer
    options: Options
    gradients: Callable[..., dict[str, torch.Tensor | None]]
    step_of: Callable[..., Any]

    def open(
        self,
        variant: Variant,
        batch: Any,
        arrays: list[Any],
        count: int,
        hyper: Any,
        mode: tuple[bool, ...],
        before: Callable[[], Before | None],
        value: Callable[[str], torch.Tensor] | None,
    ) -> Open:
        """Called before the step runs. ``before()`` copies the state, and is asked for only where that is needed;
        ``value(name)`` copies one weight (None: the live module holds it)."""
        # Only its tensors: a container need not know how to be copied, and is built again as the program's was.
        tensors, layout = flatten(batch)
        batch, groups = layout.build(copied(tensors)), groups_of(self.optimizer)
        cut, missing = None, too_little(self._room(variant).plain)
        if self.options.certificate == "short" or missing:
            cut = short.cut(self.model, self.optimizer, variant.captured.graph, value)
        if missing and cut is None:
            warnings.warn(
                f"the certificate's eager step {missing}: the process may be killed for want of memory. "
                'certificate="none" leaves it out; make it once on a larger machine, or of a smaller batch',
                stacklevel=2,
            )
        held = before() if cut is None else None
        default = torch.get_default_dtype()
        return Open(variant, batch, arrays, count, hyper, groups, mode, held, default, cut, missing)

    def _room(self, variant: Variant) -> Room:
        return Room.of(self.model, memory(variant.compiled.executable))

    def settle(
        self, first: Open, state: State, rule: Update, held: Mapping[str, torch.Tensor] | None = None
    ) -> Certificate:
        """The opened step against torch eager. ``held`` are tensors of the loss's that somebody may have written since,
        by name: eager is given what the step had."""
        if first.cut is not None:
            return self._short(first.cut, first)
        live = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        outside = state_outside(state, live)
        tensors = {**outside, **(live if first.before is None else first.before.values)}
        before = State({name: to_jax(tensors[name]) for name in state.names()}, {})
        before.arrange(first.variant.stacks)
        gradients = self.gradients(first.variant, before.values, first.arrays, first.count)
        del before
        measured = self._measured(first, gradients, first.loss, state)

        def again(values: Mapping[str, torch.Tensor]) -> certify.Measured:
            held = self._state_of(values, first, state, rule)
            held.arrange(first.variant.stacks)
            gradients = self.gradients(first.variant, held.values, first.arrays, first.count)
            numbers = np.uint32(self.options.seed), np.uint32(first.count)
            changed, held.optimizer, loss, *_ = first.variant.compiled(
                held.values, held.optimizer, first.arrays, first.hyper, *numbers
            )
            held.values.update(changed)
            return self._measured(first, gradients, loss, held)

        def restore(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            if first.before is not None:
                first.before.restore(model, optimizer)
            with torch.no_grad():
                for name, tensor in (held or {}).items():
                    tensor.copy_(outside[name])

        parts = self.options.accumulate
        then = certify.Then(
            first.groups,
            first.mode,
            first.batch,
            self._numbers(first.variant, first.count),
            parts,
            rule.clip_live,
            in_tf32(self.options.matmul),
            None if first.before is None and not held else restore,
            self._room(first.variant),
        )
        return certify.certify(measured, self.model, self.loss, self.optimizer, then, again)

    def state_before(self, first: Open, state: State, rule: Update) -> State:
        """The state before the opened step: the copy that was made then, or what the live objects hold."""
        live = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return self._state_of(live if first.before is None else first.before.values, first, state, rule)

    def _state_of(self, values: Mapping[str, Any], first: Open, state: State, rule: Update) -> State:
        values = {**state_outside(state, values), **values}
        return State({n: to_jax(values[n]) for n in state.names()}, self._optimizer_state(first, rule))

    def _measured(self, first: Open, gradients: Any, loss: Any, after: State) -> certify.Measured:
        compiled = first.variant.compiled
        program = compiled.program
        own = [n for name in compiled.own for n in program.members(name)]
        buffers = frozenset(n for name in program.written for n in program.members(name))
        changed = {n: from_jax(after.value(n)) for n in own}
        return certify.Measured(from_jax(loss), gradients, changed, buffers, coarsest(program.graph))

    def _optimizer_state(self, first: Open, rule: Update) -> Any:
        """That of before the step, by torch's names."""
        if first.before is not None and first.before.optimizer is not None:
            with x64():
                return jax.tree.map(jnp.asarray, first.before.optimizer)
        if first.before is None and self.optimizer.state:
            return rule.read_state(self.optimizer, dict(self.model.named_parameters()), first.hyper)
        return Births(rule.init, frozenset(rule.programs)).at(first.hyper)

    def _numbers(self, variant: Variant, count: int) -> certify.Numbers:
        from detente.bridge.random import twin

        parts = self.options.accumulate

        def numbers() -> Any:
            # torch.cond differentiates by tracing, which no mode survives; without draws none is needed
            if not variant.captured.draws:
                return None
            return lambda part: twin(self.options.seed, count * parts + part)

        return numbers

    def _short(self, cut: short.Cut, first: Open) -> Certificate:
        """The full certificate of the model with two repeats of each block: in the same form, unless two repeats are
        too little to roll."""
        options = replace(self.options, certificate="full", tune=False, weights=None)
        try:
            wanted = replace(options, form=first.variant.choice.form)
            step = self.step_of(cut.model, self.loss, cut.optimizer, first.batch, wanted)
        except Refused as refused:
            if any(reason.code != "form" for reason in refused.reasons):
                raise
            step = self.step_of(cut.model, self.loss, cut.optimizer, first.batch, replace(options, form=None))
        step(first.batch)
        why = f" (a full one's eager step {first.missing})" if first.missing else ""
        return replace(step.settled(), level="short", of=f"{cut.what}, {step.choice.form}{why}")


def state_outside(state: State, known: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What the state holds of tensors that are not the module's: no step changes them."""
    return {name: from_jax(state.value(name)) for name in state.names() if name not in known}


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The parameter groups, copied; their parameters are the live ones, in a list of its own."""
    return [
        {k: list(v) if k == "params" else _copy(v) for k, v in group.items()}
        for group in optimizer.param_groups
    ]


def _copy(value: Any) -> Any:
    return copied(value) if isinstance(value, torch.Tensor | list | dict) else copy.copy(value)


def coarsest(graph: Graph) -> float:
    """The largest machine epsilon among the floating dtypes that a graph computes in."""
    outs: Sequence[Any] = [
        a for node in every_node(graph) for a in (node.out if isinstance(node.out, tuple) else (node.out,))
    ]
    found = {a.dtype for a in outs if a is not None and "float" in a.dtype}
    return max((float(torch.finfo(getattr(torch, dtype)).eps) for dtype in found), default=0.0)
