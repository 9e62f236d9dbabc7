"""The step of the form that updates inside the backward loop, with a traced ``torch.optim`` rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from detente.bridge.lower.driver import Trace
from detente.bridge.optim.run import unless
from detente.bridge.random.keys import step_key
from detente.bridge.roll import backward

if TYPE_CHECKING:
    from detente.bridge.program.program import Program


def update_inside(program: Program, rule: Any, names: Sequence[str]) -> Callable[..., Any]:
    """The step of ``Program.update`` in this form, with the same signature:
    ``f(own, state, fixed, batch, hyper, seed, count) -> (own, state, loss, aux, word)``."""
    wanted = frozenset(names)

    def step(own: Any, state: Any, fixed: Any, batch: Any, hyper: Any, seed: Any, count: Any) -> Any:
        trace = Trace(program.sites, step_key(seed, count))

        stacks = {n: m for n in wanted if len(m := program.members(n)) > 1}
        ahead = rule.ahead(sorted(wanted & state.keys()), state, hyper, stacks)
        fault: list[Any] = []  # whether the forward pass raised, once it is over

        def between() -> None:
            fault.append(program.faulted(trace.word()))

        def update(name: str, row: Any, param: Any, grad: Any, kept: Any) -> tuple[Any, Any]:
            if name not in wanted:
                return param, kept
            members = program.members(name)
            first = members[0]
            groups = [rule.group_of[m] for m in members]
            mine = hyper
            if row is not None and len(set(groups)) > 1:
                # a slice of a stack is updated under its first member's name, with its own group's numbers
                distinct = sorted(set(groups))
                table = jnp.stack([hyper[group] for group in distinct])
                own = table[jnp.asarray([distinct.index(group) for group in groups])[row]]
                mine = tuple(own if k == groups[0] else numbers for k, numbers in enumerate(hyper))
            given = None
            if ahead is not None and name in ahead:
                given = {first: tuple(a if row is None else a[row] for a in ahead[name])}
            params, states = rule.apply(
                {first: param}, {first: grad}, {first: kept}, mine, ahead=given, skip=fault[0]
            )
            return params[first], states[first]

        values = program.bind({**fixed, **own}, batch)
        done = backward.step(program.graph, values, state, update, trace, between)
        loss, aux, buffers = program.split(done.outputs)
        buffers = {n: unless(fault[0], value, own[n]) for n, value in buffers.items()}
        params = {n: v for n, v in done.params.items() if n in wanted}
        kept = {n: v for n, v in done.state.items() if n in wanted}
        state = rule.rested({**state, **kept}, {**fixed, **own}, names, fault[0])
        return {**own, **buffers, **params}, state, loss, aux, trace.word()

    return step
