"""A jointly traced optimizer with the interface of a ``Rule``: the whole step is one program.

The first step of most optimizers makes their state, so it is another program than the later ones: after it ``hyper``
raises Stale, the caller writes the state into the live optimizer and traces again, from what is there then. The same
where an ``if`` on a count turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from detente.bridge.graph import Graph
from detente.bridge.lower.precision import torch_numerics, x64
from detente.bridge.optim.couple import reached
from detente.bridge.optim.hyper import Stale, encode
from detente.bridge.optim.joint import Joint, key_of, trace_joint
from detente.bridge.optim.layout import array_of, tensor_of
from detente.bridge.optim.leaving import Left, leave
from detente.bridge.optim.reach import Place, Spot, Table, found, holder, in_state, keyed, put, spots
from detente.bridge.optim.recording import aval_of
from detente.bridge.optim.run import decode, select, unless
from detente.bridge.refusal import Refused, refuse

State = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Member:
    """One parameter of a joint rule: each is a program of its own, so none is stacked with another."""

    name: str
    index: int


@dataclass(frozen=True)
class Whole:
    """What stands for the groups where a program is named."""

    names: tuple[str, ...]
    literals: tuple[Any, ...]
    members: tuple[str, ...]


@dataclass(frozen=True)
class JointRule:
    """See ``Rule``. ``tokens`` are what live tensors of the state are called; ``flags`` whether the step of a program
    that is taken once has been taken, ``left`` how the live optimizer was last seen or left."""

    name: str
    joint: Joint
    ids: Mapping[int, str]
    params: Mapping[str, torch.Tensor] = field(repr=False)
    begun: State = field(repr=False)
    left: Left = field(repr=False, compare=False)
    flags: dict[str, bool] = field(default_factory=dict)

    together = True

    @property
    def programs(self) -> dict[str, Member]:
        return {name: Member(name, i) for i, name in enumerate(self.trained)}

    @property
    def trained(self) -> tuple[str, ...]:
        return self.joint.names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.joint.names)

    @property
    def group_of(self) -> dict[str, int]:
        return dict.fromkeys(self.trained, 0)

    @property
    def groups(self) -> tuple[Whole, ...]:
        return (Whole(tuple(self.joint.numbers), (), self.trained),)

    # -- the numbers ------------------------------------------------------------------------------------------

    def hyper(self, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
        """The numbers now, one float32[n, 3]. Raises Stale where this program no longer fits."""
        if self.flags.get("taken"):
            raise Stale(f"the first step of {self.name} is another than the later ones")
        values = self._values(optimizer)
        for guard in self.joint.guards:
            if not guard.holds(values):
                raise Stale(f"{self.name} takes another branch now, at {guard.place}")
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return (encode(values, tuple(values)),)

    def _values(self, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        at = self.joint.before.at
        try:
            for place, spot in at.items():
                if in_state(place):
                    continue
                if spot.kind in ("plain", "set", "int") and place not in self.joint.counts:
                    if found(optimizer, place, self.params) != self.joint.before.values[place]:
                        raise Stale(f"{key_of(place)[1:]} of {self.name} changed since it was compiled")
                elif spot.kind in ("dict", "sequence") and place[:1] == (("attr", "param_groups"),):
                    held = found(optimizer, place, self.params)
                    if len(held) != len(spot.detail[2]):
                        raise Stale(f"the parameter groups of {self.name} changed since it was compiled")
            return {key: float(found(optimizer, p, self.params)) for key, p in self.joint.numbers.items()}
        except (LookupError, AttributeError, TypeError) as error:
            raise Stale(f"{self.name} holds other things than when it was compiled") from error

    def due(self, optimizer: torch.optim.Optimizer) -> list[tuple[Any, Any, Any]]:
        """(table, key, value) of the numbers that Python computes for the step that comes."""
        values = self._values(optimizer)
        out = []
        for place, now in self.joint.due.items():
            if place in self.joint.before.at:
                table, key = holder(optimizer, keyed(place, self.params))
                new = now(values)
                out.append((table, key, int(new) if isinstance(table[key], int) else new))
        if not self.joint.steady:
            out.append((self.flags, "taken", True))
        return out

    def graphs(self) -> Iterator[Graph]:
        return (path.graph for path in self.joint.paths)

    def follow(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """The numbers that the program has computed, into the optimizer; waits for them. So does what a first step
        makes in attributes and groups, which nobody is told of who reads them (of ``state`` everybody is)."""
        self._numbers_into(optimizer, state, [p for p in self.joint.drawn if p in self.joint.before.at])
        made = self.joint.after.at.items() - self.joint.before.at.items() if not self.joint.steady else ()
        if any(not _of_states(place) for place, _ in made if place):
            self.write_state(optimizer, state, self.params)

    def elsewhere(self) -> list[torch.Tensor]:
        """The live tensors that a step writes outside of ``optimizer.state``: in attributes, in groups."""
        return [self.left.objects[place] for place in self._elsewhere()]

    def replaced(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether somebody has put another thing where one of these stood."""
        try:
            return any(
                found(optimizer, place, self.params) is not self.left.objects[place]
                for place in self._elsewhere()
            )
        except (LookupError, AttributeError, TypeError):
            return True

    def _elsewhere(self) -> list[Place]:
        at = self.left.at
        return [p for p in self.joint.kept if not _of_states(p) and p in at and at[p].kind == "tensor"]

    def numbers_into(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Every number of the state into the optimizer: the state is another than that of the last step."""
        self.flags.clear()
        places = [p for p in self._kept(self._table(state), state) if self.joint.before.at.get(p) is not None]
        self._numbers_into(optimizer, state, [p for p in places if self.joint.before.at[p].kind != "tensor"])

    def _numbers_into(self, optimizer: Any, state: State, places: list[Place]) -> None:
        for place in places:
            owner, leaf = self._owner(place)
            value = np.asarray(state[owner][leaf]).item()
            table, key = self.left.holder(optimizer, place, self.params)
            if key not in table and not isinstance(table, list):
                continue  # somebody took it away
            if isinstance(table[key], torch.Tensor):
                with torch.no_grad():
                    table[key].fill_(value)
            else:
                table[key] = int(value) if isinstance(table[key], int) else float(value)

    # -- state ------------------------------------------------------------------------------------------------

    def _owner(self, place: Place) -> tuple[str, str]:
        """(parameter, leaf) under which a step keeps what stands at a place."""
        mine = _named(place)
        if mine in self._names:
            return mine, key_of(place)
        # of no parameter, or of one that is frozen: the whole path, or it would be the first parameter's own
        return self.trained[0], "#" + "/".join(str(key) for _, key in place)

    def _kept(self, table: Table, state: State) -> list[Place]:
        """The places of a table that the state has."""
        owned = ((place, *self._owner(place)) for place in table.of("tensor", "scalar", "int", "float"))
        return [place for place, owner, leaf in owned if leaf in state.get(owner, ())]

    def _table(self, state: State) -> Table:
        """Which of the two tables this state is of."""
        if self.joint.steady:
            return self.joint.before
        kept = {self._owner(place) for place in self.joint.kept}
        held = {
            (name, leaf) for name, entry in state.items() for leaf in entry if not leaf.startswith("#ema")
        }
        return self.joint.after if kept == held else self.joint.before

    def init(self, params: Mapping[str, jax.Array | None], hyper: Sequence[Any]) -> State:
        """What the optimizer held when it was traced."""
        with x64():
            return {
                name: {k: jnp.array(v) for k, v in self.begun.get(name, {}).items()}
                for name in self.programs
                if name in params
            }

    def read_state(self, optimizer: torch.optim.Optimizer, params: Mapping[str, torch.Tensor]) -> State:
        """The live optimizer's tensors and counts. Raises Stale where it holds other things than it did."""
        live = spots(optimizer, self.ids)
        self.flags.clear()
        if live.at != self.joint.before.at:
            raise Stale(f"{self.name} holds other things than when it was compiled")
        self.left.at, self.left.objects = live.at, dict(live.values)
        return self._read(live)

    def _read(self, live: Table) -> State:
        state: State = {name: {} for name in self.trained}
        wanted = {*self.joint.taken, *(p for p in self.joint.kept if p in live.at)}
        with x64():
            for place in live.of("tensor", "scalar", "int", "float"):
                if place in wanted:
                    owner, leaf = self._owner(place)
                    state[owner][leaf] = array_of(live.values[place])
        return state

    def write_state(
        self,
        optimizer: torch.optim.Optimizer,
        state: State,
        params: Mapping[str, torch.Tensor],
        whole: bool = False,
    ) -> None:
        """As ``Rule.write_state``; containers that a step has made are made. What somebody else has put into the live
        optimizer since stays (leaving.py); a copy becomes what the optimizer was then, ``whole``."""
        table = self._table(state)
        kept = set(self._kept(table, state))

        def value(place: Place, spot: Spot, old: Any) -> Any:
            if place not in kept:
                return old
            owner, leaf = self._owner(place)
            new = np.asarray(state[owner][leaf])
            if spot.kind in ("int", "float"):
                return int(new) if spot.kind == "int" else float(new)
            if isinstance(old, torch.Tensor) and aval_of(old) == spot.detail:
                with torch.no_grad():
                    old.copy_(tensor_of(new, spot.detail))
                return old
            return tensor_of(new, spot.detail)

        if whole:
            put(optimizer, table, value, params)
        else:
            leave(optimizer, self.left, table, value, params)

    # -- the update -------------------------------------------------------------------------------------------

    def apply(
        self,
        params: Mapping[str, jax.Array],
        grads: Mapping[str, jax.Array | None],
        state: State,
        hyper: Sequence[Any],
        stacks: Mapping[str, Sequence[str]] | None = None,
        skip: jax.Array | None = None,
    ) -> tuple[dict[str, jax.Array], State]:
        """One step. JAX-traceable. ``skip``, a 0-d bool: everything stays as it was, but for what a first step makes.
        Raises Refused where a parameter has no gradient: the others would see that."""
        lacking = [n for n in self.trained if grads.get(n) is None]
        if lacking:
            raise refuse(
                "optimizer",
                f"{self.name} is traced with all of its parameters, and {lacking[0]} has no gradient in this step",
                hint="freeze it (requires_grad_(False)) or leave it out of the optimizer",
            )
        with torch_numerics():
            row = decode(hyper[0])
            values: dict[str, Any] = {f"hyper.{name}": row[i] for i, name in enumerate(self.joint.numbers)}
            values |= {f"param:{n}": p for n, p in params.items()} | {
                f"grad:{n}": g for n, g in grads.items()
            }
            for place in self.joint.taken:
                owner, leaf = self._owner(place)
                values[f"at:{'/'.join(str(k) for _, k in place)}"] = state[owner][leaf]
            count = len(self.joint.names) + len(self.joint.kept)
            results = select(self.joint.paths, values, count)
            new = dict(params)
            for name, value in zip(self.joint.names, results, strict=False):
                if name in new:
                    new[name] = unless(skip, value, new[name])
            own = {
                n: {k: v for k, v in state.get(n, {}).items() if k.startswith("#ema")} for n in self.trained
            }
            after: State = {**{n: e for n, e in state.items() if n not in own}, **own}
            for place, value in zip(self.joint.kept, results[len(self.joint.names) :], strict=True):
                owner, leaf = self._owner(place)
                spot = self.joint.after.at[place]
                dtype = spot.detail.dtype if spot.kind in ("tensor", "scalar") else "float64"
                made = jnp.asarray(value, dtype)
                old = state.get(owner, {}).get(leaf)
                after[owner][leaf] = made if old is None else unless(skip, made, jnp.asarray(old, dtype))
        return new, after

    def stackable(self, members: Iterable[str]) -> bool:
        """Never two."""
        return len(tuple(members)) == 1

    def program_of(self, members: Sequence[str]) -> Member:
        return self.programs[members[0]]


def joint_rule(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.Tensor]]) -> JointRule:
    """Trace the next step of an optimizer as a whole. Raises Refused."""
    params = dict(named)
    ids = {id(p): name for name, p in params.items()}
    joint = trace_joint(optimizer, ids)
    left = Left(joint.before.at, dict(joint.before.values))
    rule = JointRule(type(optimizer).__name__, joint, ids, params, {}, left)
    if not rule.trained:
        raise refuse("optimizer", f"{rule.name} has no parameter that is trained")
    rule.begun.update(rule._read(joint.before))
    return rule


def across_groups(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.Tensor]]
) -> JointRule | None:
    """The joint rule of an optimizer one group of which reads another's numbers or parameters
    (``self.param_groups[0]["lr"]``), which a trace of one group at a time takes for its own. None where none does."""
    try:
        rule = joint_rule(optimizer, named)
    except Refused:
        return None  # more tests than a joint trace takes; the groups were traced one by one
    members = [
        {rule.ids[id(p)] for p in group["params"] if id(p) in rule.ids} for group in optimizer.param_groups
    ]
    for graph in rule.graphs():
        whose = [*rule.joint.names, *map(_named, rule.joint.kept)]
        for output, name in zip(graph.outputs, whose, strict=False):
            home = next((i for i, held in enumerate(members) if name in held), None)
            if home is not None and not all(_own(read, home, members) for read in reached(graph, (output,))):
                return rule
    return None


def _of_states(place: Place) -> bool:
    return place[0] == ("attr", "state")


def _named(place: Place) -> str | None:
    return next((key for kind, key in place if kind == "param"), None)


def _own(read: str, home: int, members: list[set[str]]) -> bool:
    """Whether an input is of this group, or of no group."""
    kind, _, rest = read.partition(":") if ":" in read else read.partition(".")
    if kind in ("param", "grad"):
        return rest in members[home]
    if rest.startswith("#param_groups/"):
        return rest.split("/")[1] == str(home)
    other = [name for i, held in enumerate(members) if i != home for name in held]
    return not any(f"/{name}/" in f"/{rest}/" for name in other)
