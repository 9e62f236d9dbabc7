"""An optimizer as a pure rule: ``apply(params, grads, state, hyper) -> (params, state)`` in JAX."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from detente.bridge.graph import Aval
from detente.bridge.lower.precision import torch_numerics, x64
from detente.bridge.optim.accept import check, step_of, wraps
from detente.bridge.optim.births import births
from detente.bridge.optim.couple import check_uncoupled
from detente.bridge.optim.hyper import Stale, encode, literals, numbers, traced_groups
from detente.bridge.optim.joint_rule import JointRule, across_groups, joint_rule
from detente.bridge.optim.layout import from_torch, into_torch, leaves_of
from detente.bridge.optim.numbers_ahead import all_ahead
from detente.bridge.optim.one_pass import OnePass, one_pass
from detente.bridge.optim.program import Leaf, Program
from detente.bridge.optim.recording import aval_of
from detente.bridge.optim.reshaped import of_each_element, reshaped
from detente.bridge.optim.run import STARTED, born, decode, numbers_in, update
from detente.bridge.optim.tracer import Written, trace_step
from detente.bridge.refusal import Refused, refuse

State = dict[str, dict[str, Any]]
# A parameter or a stack, its program, its numbers, and whether these have a row for each layer (0) or none (None).
Work = tuple[str, Program, jax.Array, int | None]


@dataclass(frozen=True)
class Group:
    """One parameter group: the names of its numbers, and the signature of everything else."""

    names: tuple[str, ...]
    literals: tuple[tuple[str, Any], ...]
    members: tuple[str, ...]
    written: frozenset[str] = frozenset()  # numbers that the step itself writes


@dataclass(frozen=True)
class Rule:
    """What ``trace`` makes of a ``torch.optim`` optimizer. Pure: it holds graphs, never arrays.

    ``programs`` has one entry per parameter name; parameters of the same shape, dtype and group structure
    share one. ``state`` is ``{name: {key: array}}`` with torch's own keys and dtypes (``step`` included), plus
    ``#started`` where a parameter's very first step differs from the later ones.
    """

    name: str
    groups: tuple[Group, ...]
    group_of: Mapping[str, int]
    programs: Mapping[str, Program]

    together = False  # each parameter is updated by itself

    # -- the numbers ------------------------------------------------------------------------------------------

    def hyper(self, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
        """The groups' numbers now, one float32[n, 3] per group (see ``hyper.encode``); read before every step.

        Raises Stale where they no longer fit this rule (trace again). Tells the optimizer that it was stepped,
        so that torch's schedulers do not warn.
        """
        groups = optimizer.param_groups
        if len(groups) != len(self.groups) or any(
            len(g["params"]) != len(mine.members) for g, mine in zip(groups, self.groups, strict=True)
        ):
            raise Stale(f"the parameter groups of {self.name} changed since it was compiled")
        out = []
        for index, (group, mine) in enumerate(zip(groups, self.groups, strict=True)):
            values = numbers(group, mine.written)
            if tuple(values) != mine.names or literals(optimizer, group, mine.written) != mine.literals:
                raise Stale(
                    f"group {index} of {self.name} changed more than its numbers since it was compiled"
                )
            for program in {id(p): p for p in map(self.programs.get, mine.members) if p}.values():
                for guard in program.guards:
                    if not guard.holds(values):
                        raise Stale(
                            f"group {index} of {self.name} takes another branch now, at {guard.place}"
                        )
            out.append(encode(values, mine.names))
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return tuple(out)

    def due(self, optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], str, int | float]]:
        """(group, key, value) of the numbers that a step from here writes into ``param_groups``."""
        out = []
        for group, mine in zip(optimizer.param_groups, self.groups, strict=True):
            last = next((self.programs[n] for n in reversed(mine.members) if n in self.programs), None)
            if last is not None and last.step.writes:
                values = numbers(group, mine.written)
                out += [(group, due.key, due.value(values)) for due in last.step.writes]
        return out

    def follow(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """What a step's results change in the optimizer at once: here nothing."""

    def numbers_into(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Called where the state is another than that of the last step; its numbers are all on the device."""

    # -- state ------------------------------------------------------------------------------------------------

    def init(self, params: Mapping[str, jax.Array | None], hyper: Sequence[Any]) -> State:
        """The state of parameters that were never stepped, as torch would make it in their first step.

        A value may be None unless its program ``copies_param``. JAX-traceable. Only names of this optimizer get
        an entry. Raises ValueError for a parameter whose state torch makes elsewhere (Adagrad, in ``__init__``):
        read it with ``read_state``.
        """
        state: State = {}
        made: dict[tuple[int, int], dict[str, Any]] = {}  # parameters of one program and group begin alike
        for name, param in params.items():
            program = self.programs.get(name)
            if program is None:
                continue
            if program.births is None:
                raise ValueError(
                    f"{self.name} keeps live state for {name!r}: read it with read_state(optimizer)"
                )
            group = self.group_of[name]
            known = made.get((id(program), group))
            if known is None:
                state[name] = born(program, param, hyper[group])
                if not program.copies_param:
                    made[id(program), group] = state[name]
            else:
                with x64():  # copies: a donated buffer must not be another parameter's too
                    state[name] = {key: jax.numpy.copy(value) for key, value in known.items()}
        return state

    def read_state(
        self,
        optimizer: torch.optim.Optimizer,
        params: Mapping[str, torch.Tensor],
        hyper: Sequence[Any] | None = None,
    ) -> State:
        """The live optimizer's state as JAX arrays (copies); what torch has not made yet is made as by ``init``.

        ``params`` is ``dict(module.named_parameters())``: it names the optimizer's tensors. ``hyper``: the numbers of
        a step that is over, whose groups may be others by now; None: those of now. Raises Stale where the optimizer
        holds less than when this was traced, and where its groups of now are asked and are others.
        """
        state: State = {}
        fresh: dict[str, Any] = {}
        hyper = self.hyper(optimizer) if hyper is None else hyper
        for name, program in self.programs.items():
            live = optimizer.state.get(params[name], {})
            if live or program.births is None:
                if missing := [leaf.key for leaf in program.leaves if leaf.key not in live]:
                    raise Stale(
                        f"optimizer.state of {name!r} lacks {missing}, which it had when it was compiled"
                    )
                state[name] = from_torch(live, program.leaves)
                if program.first is not None:
                    state[name][STARTED] = jax.numpy.ones((), bool)
            elif program.copies_param:
                fresh[name] = from_torch({"p": params[name].detach()}, (Leaf("p", program.param),))["p"]
            else:
                fresh[name] = None
        return {**state, **self.init(fresh, hyper)}

    def elsewhere(self) -> list[torch.Tensor]:
        """The live tensors that a step writes outside of ``optimizer.state``: of such an optimizer none."""
        return []

    def replaced(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether somebody has put another thing where one of these stood."""
        return False

    def write_state(
        self,
        optimizer: torch.optim.Optimizer,
        state: State,
        params: Mapping[str, torch.Tensor],
        whole: bool = False,
    ) -> None:
        """Put ``state`` into the live optimizer, so that ``optimizer.state_dict()`` is what torch itself would
        have made, in its order. Tensors that exist are written in place; names that ``state`` lacks are left alone.

        The live groups may be others by now (one was removed, two were merged): what was trained under the old ones
        stays its parameter's, also of one that is in no group any more, as torch keeps it. ``whole`` is for rules that
        write more than the state.
        """
        order = {name: i for i, name in enumerate(name for group in self.groups for name in group.members)}
        homes = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for name, entry in sorted(state.items(), key=lambda item: order.get(item[0], len(order))):
            param = params[name]
            if STARTED in entry and not bool(entry[STARTED]):
                optimizer.state.pop(param, None)
                continue
            if not self.programs[name].leaves and param not in optimizer.state:
                continue  # nothing is kept, and asking for it would make an entry
            into_torch(
                optimizer.state[param], entry, self.programs[name].leaves, param, homes.get(id(param), {})
            )

    # -- the update -------------------------------------------------------------------------------------------

    def resting(self, state: State, names: Iterable[str]) -> list[str]:
        """As ``Update.resting``: a rule by itself moves nothing of what takes no part."""
        return []

    def rested(
        self,
        state: State,
        params: Mapping[str, jax.Array],
        names: Iterable[str],
        skip: jax.Array | None = None,
    ) -> State:
        """As ``Update.rested``."""
        return state

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
        """One step. A parameter that is not the optimizer's, or whose gradient is absent or None, is left as it
        is together with its state, as torch leaves a parameter without ``.grad``.

        ``stacks`` maps a stacked array's name to the torch names of its slices along axis 0: parameter,
        gradient and every state leaf then carry that leading axis, and the update is vmapped over it (each
        slice with the numbers of its own group). ``ahead``: what ``ahead`` gave for these parameters, where somebody
        asked it before. ``skip``, a 0-d bool: no step, everything stays as it was, in place. JAX-traceable, whatever
        jax's x64 mode.
        """
        stacks = stacks or {}
        new_params, new_state = dict(params), dict(state)
        # one inner function per program: parameters of one shape and group structure are traced and lowered once
        inner: dict[int, Any] = {}
        with torch_numerics():
            work = self._work([n for n in params if grads.get(n) is not None], hyper, stacks)
            if ahead is None:
                work = self._in_one_pass(work, params, grads, state, stacks, new_params, new_state, skip)
            given = _ahead(work, state, stacks) if ahead is None else ahead
            for name, program, numbers, axis in work:
                step = inner.setdefault(id(program), jax.jit(partial(update, program)))
                if name in stacks:
                    step = jax.vmap(step, in_axes=(0, 0, 0, axis, 0, None))
                new_params[name], fresh = step(
                    params[name], grads[name], state[name], numbers, given[name], skip
                )
                new_state[name] = {**state[name], **fresh}
        return new_params, new_state

    def _in_one_pass(
        self,
        work: Sequence[Work],
        params: Mapping[str, jax.Array],
        grads: Mapping[str, jax.Array | None],
        state: State,
        stacks: Mapping[str, Sequence[str]],
        new_params: dict[str, jax.Array],
        new_state: State,
        skip: jax.Array | None,
    ) -> list[Work]:
        """Updates what a kernel can (one_pass.py); the others are returned. Not for who applies the rule inside a loop:
        one slice of a stack after another would be copied out for the call and back."""
        known: dict[Any, OnePass | None] = {}
        left: list[Work] = []
        for one in work:
            name, program, numbers, _ = one
            param, grad, mine = params[name], grads[name], state[name]
            assert grad is not None
            kind = (id(program), grad.dtype, grad.shape, name in stacks)
            if kind not in known:
                known[kind] = one_pass(program, param, grad, mine, name in stacks, skip is not None)
            once = known[kind]
            if once is None:
                left.append(one)
                continue
            new_params[name], fresh = once(param, grad, mine, numbers, skip)
            new_state[name] = {**mine, **fresh}
        return left

    def ahead(
        self,
        names: Iterable[str],
        state: State,
        hyper: Sequence[Any],
        stacks: Mapping[str, Sequence[str]],
    ) -> dict[str, tuple[Any, ...]]:
        """What ``apply`` computes of numbers alone (numbers_ahead.py), by name; of a stack with an axis in front. For
        who applies the rule to one parameter after another: it does this once, before them all."""
        with torch_numerics():
            return _ahead(self._work(names, hyper, stacks), state, stacks)

    def _work(
        self, names: Iterable[str], hyper: Sequence[Any], stacks: Mapping[str, Sequence[str]]
    ) -> list[Work]:
        """Each parameter that is the optimizer's, with its program and the numbers of its group. Under x64."""
        rows = [decode(row) for row in hyper]
        found: list[Work] = []
        for name in names:
            members = tuple(stacks.get(name, (name,)))
            if members[0] not in self.programs:
                continue
            groups = [self.group_of[member] for member in members]
            numbers, axis = rows[groups[0]], None
            if len(set(groups)) > 1:
                # one gather: an operand per layer would make a program that grows with depth
                distinct = sorted(set(groups))
                table = jax.numpy.stack([rows[group] for group in distinct])
                numbers, axis = table[np.array([distinct.index(group) for group in groups])], 0
            found.append((name, self.program_of(members), numbers, axis))
        return found

    def stackable(self, members: Iterable[str]) -> bool:
        """Whether these parameters have one update rule, so that their state can be one stacked array each."""
        names = tuple(members)
        found = [self.programs.get(name) for name in names]
        return all(p is found[0] for p in found) and (
            found[0] is None or len({len(self.groups[self.group_of[n]].names) for n in names}) == 1
        )

    def program_of(self, members: Sequence[str]) -> Program:
        """The one program of these parameters. Raises ValueError where they are not ``stackable``."""
        if not self.stackable(members):
            raise ValueError(f"{', '.join(members)} are updated by different rules and cannot be one stack")
        return self.programs[members[0]]


def _ahead(
    work: Sequence[Work], state: State, stacks: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Any, ...]]:
    """By name; nothing for those whose step is not split."""
    wanted = {
        name: (program.halves, numbers_in(program, state[name], numbers), name in stacks)
        for name, program, numbers, _ in work
        if program.halves is not None
    }
    found = all_ahead(wanted)
    return {name: found.get(name, ()) for name, *_ in work}


def trace(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    gone: Collection[int] = (),
) -> Rule | JointRule:
    """Trace an unmodified optimizer into a ``Rule``, about 5 ms per distinct shape.

    ``named_parameters`` is ``module.named_parameters()``. Frozen parameters (``requires_grad=False``) of the
    optimizer are left out, as torch leaves them. ``gone``: ids of parameters that are the module's no more: torch
    passes over them, as they have no gradient. Raises Refused for what cannot be compiled (LBFGS, SparseAdam,
    step hooks, a step that couples parameters), naming the line of the optimizer's code where there is one.
    """
    named = list(named_parameters)
    check(optimizer)
    if wraps(optimizer):
        return joint_rule(optimizer, named)
    torchs = type(optimizer).__module__.startswith("torch.optim")
    if not torchs and _looks_parameters_up(optimizer):
        return joint_rule(
            optimizer, named
        )  # traced alone, a parameter is a stand-in, which stands in no table
    try:
        alone = _alone(optimizer, dict.fromkeys(gone, _GONE) | {id(p): name for name, p in named})
    except Refused:
        if torchs:
            raise
        return joint_rule(optimizer, named)
    if torchs or len(optimizer.param_groups) == 1:
        return alone
    return across_groups(optimizer, named) or alone


def _looks_parameters_up(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it keeps a table of parameters beside its state (``self.frozen = {weight: True}``). Raises Refused for a
    set of them, or of their ids: no trace has those."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = False
    for name, held in vars(optimizer).items():
        if name in ("state", "param_groups") or not isinstance(held, dict | set | frozenset | list | tuple):
            continue
        keys = list(dict.keys(held)) if isinstance(held, dict) else list(held)
        mine = [key for key in keys if id(key) in own]
        if any(type(key) is int and key in own for key in keys) or (
            mine and isinstance(held, set | frozenset)
        ):
            raise refuse(
                "optimizer",
                f"{type(optimizer).__name__}.{name} holds parameters as a set, or by their id()",
                step_of(optimizer),
                hint="keep what is special about a parameter in its group, or in a dictionary by parameter",
            )
        found = found or (bool(mine) and isinstance(held, dict))
    return found


_GONE = ""  # the name of a parameter that is the module's no more


def _alone(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Rule:
    """A rule of one program per shape. Raises Refused."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    beside = [key for key in dict.keys(optimizer.state) if id(key) not in own]
    if beside and not type(optimizer).__module__.startswith("torch.optim"):
        raise refuse(
            "optimizer", f"{type(optimizer).__name__} keeps {beside[0]!r} in its state, which is no parameter"
        )
    groups: list[Group] = []
    group_of: dict[str, int] = {}
    programs: dict[str, Program] = {}
    known: dict[Any, list[Program]] = {}
    for index, group in enumerate(optimizer.param_groups):
        strangers = [list(p.shape) for p in group["params"] if id(p) not in names]
        if strangers:
            raise refuse(
                "optimizer",
                f"group {index} of {type(optimizer).__name__} holds {len(strangers)} parameters that are not the "
                f"module's (shapes {strangers[:3]})",
                hint="build the optimizer from the parameters of the module that is compiled",
            )
        members = tuple(names[id(p)] for p in group["params"])
        written: frozenset[str] = frozenset()
        while True:  # until every number that the step writes is known for one
            mine = Group(
                tuple(numbers(group, written)), literals(optimizer, group, written), members, written
            )
            try:
                found = _programs(optimizer, group, mine, known)
                break
            except Written as more:
                written |= more.keys
        groups.append(mine)
        programs |= found
        group_of |= dict.fromkeys(found, index)
    return Rule(type(optimizer).__name__, tuple(groups), group_of, programs)


def _programs(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], mine: Group, known: dict[Any, list[Program]]
) -> dict[str, Program]:
    """By name, of the group's parameters that are trained; ``known`` are those of earlier ones, by what they depend
    on."""
    programs: dict[str, Program] = {}
    both = zip(mine.members, group["params"], strict=True)
    trained = [(n, p) for n, p in both if p.requires_grad and n != _GONE]
    for name, param in trained:
        key = (
            mine.literals,
            mine.names,
            aval_of(trained[0][1]).dtype,
            aval_of(param),
            _layout(optimizer, param),
        )
        found = next((p for p in known.get(key, ()) if _fits(p, group, mine.written)), None)
        if found is None:
            alike = known.setdefault(_but_lengths(key), [])
            found = _reshaped(optimizer, alike, group, mine.written, key)
            if found is None:
                found = _program(optimizer, group, aval_of(param), key[-1], mine.written)
                alike.append(found)
            known.setdefault(key, []).append(found)
        programs[name] = found
    return programs


def _but_lengths(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a program depends on but for the lengths of its parameter's axes."""
    *others, param, layout = key
    return ("of any lengths", *others, len(param.shape), param.dtype, layout is None)


def _reshaped(
    optimizer: torch.optim.Optimizer,
    alike: Sequence[Program],
    group: Mapping[str, Any],
    written: frozenset[str],
    key: tuple[Any, ...],
) -> Program | None:
    """A program of other lengths, written for these; None where it has to be traced. A state that exists already may
    be anybody's."""
    *_, param, layout = key
    if layout is not None or not of_each_element(optimizer):
        return None
    return next((p for a in alike if _fits(a, group, written) and (p := reshaped(a, param))), None)


def _fits(program: Program, group: Mapping[str, Any], written: frozenset[str]) -> bool:
    """Whether this group takes the branches that the program was traced along."""
    values = numbers(group, written)
    return all(guard.holds(values) for guard in program.guards)


def _layout(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> tuple[Leaf, ...] | None:
    live = optimizer.state.get(param, {})
    return leaves_of(live) if live else None


def _program(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    param: Aval,
    leaves: tuple[Leaf, ...] | None,
    written: frozenset[str],
) -> Program:
    *others, last = traced_groups(optimizer, group)
    for plain in others:
        with suppress(Refused):
            return _traced(optimizer, group, plain, param, leaves, written)
    return _traced(optimizer, group, last, param, leaves, written)


def _traced(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    plain: dict[str, Any],
    param: Aval,
    leaves: tuple[Leaf, ...] | None,
    written: frozenset[str],
) -> Program:
    symbols = numbers(group, written)
    if isinstance(optimizer, torch.optim.Adafactor) and group["eps"][0] is None:
        # its loop overwrites eps1 at the group's first parameter, whose dtype then serves all of them
        lead = next(p for p in group["params"] if p.requires_grad)
        plain["eps"] = (torch.finfo(lead.dtype).eps, group["eps"][1])
    first = trace_step(optimizer, plain, symbols, (param,), (leaves,))
    check_uncoupled(optimizer, plain, symbols, param, leaves, first)
    if leaves is not None:
        return Program(param, tuple(symbols), first, None, None)
    step = trace_step(optimizer, plain, symbols, (param,), (first.leaves,))
    made = births(first, step)
    return Program(param, tuple(symbols), step, None if made is not None else first, made or {})
