"""Everything that an optimizer reaches: groups, state, attributes, optimizers that it wraps, as a flat table of places.

A place is a path of steps from the optimizer: ``(("attr", "state"), ("param", "head.weight"), ("item", "exp_avg"))``.
What stands there is a ``Spot``. Two tables are equal where the same things stand at the same places, so that one
traced step fits both; ``put`` writes a table's values into an optimizer, and makes the containers that are not there.

How it can fail: an object that keeps its values in slots or in C is opaque, and taken as it is.
"""

from __future__ import annotations

import enum
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.graph import Aval
from detente.bridge.optim.number import is_number
from detente.bridge.refusal import refuse

Place = tuple[tuple[str, Any], ...]
# what torch itself keeps on an optimizer, and hooks, which accept.py has refused
TORCHS = frozenset({
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks", "_opt_called", "_step_count", "_zero_grad_profile_name",
    "_warned_capturable_if_run_uncaptured", "step",
})  # fmt: skip
SEQUENCES = (list, tuple, deque)
CONTAINERS = ("dict", "sequence", "object")  # kinds of a spot
PLAIN = (bool, str, bytes, type(None), enum.Enum, torch.dtype, torch.device)
OPAQUE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    functools.partial,
    nn.Module,
    torch.Generator,
)


@dataclass(frozen=True)
class Spot:
    """``kind``: ``tensor`` (``detail`` its Aval), ``scalar`` (one floating element outside of every state), ``int`` or
    ``float``, ``param`` (its name), ``plain`` (the value), ``set``, ``same`` (the place where it stood first),
    ``opaque``, or a container's: ``dict``, ``sequence``, ``object`` with type and members."""

    kind: str
    detail: Any = None


def spots(root: Any, names: Mapping[int, str], key: Callable[[Any], Any] | None = None) -> Table:
    """The table of ``root``; ``names`` are the parameters' by identity, ``key`` makes a plain key of a symbolic one."""
    return Table(*_Walk(names, key or (lambda value: value)).table(root))


@dataclass(frozen=True)
class Table:
    """``at`` by place, in the order of a walk; ``values`` are what stood there."""

    at: dict[Place, Spot]
    values: dict[Place, Any]

    def of(self, *kinds: str) -> Iterator[Place]:
        return (place for place, spot in self.at.items() if spot.kind in kinds)


class _Walk:
    def __init__(self, names: Mapping[int, str], key: Callable[[Any], Any]) -> None:
        self.names, self.key = names, key
        self.at: dict[Place, Spot] = {}
        self.values: dict[Place, Any] = {}
        self.seen: dict[int, Place] = {}

    def table(self, root: Any) -> tuple[dict[Place, Spot], dict[Place, Any]]:
        self.visit(root, ())
        return self.at, self.values

    def visit(self, value: Any, place: Place) -> None:
        if isinstance(value, torch.SymInt):  # a number that int() has fixed
            value = int(value)
        if id(value) in self.names:
            self.leaf(place, Spot("param", self.names[id(value)]), value)
        elif isinstance(value, PLAIN):
            self.leaf(place, Spot("plain", value), value)
        elif isinstance(value, set | frozenset):
            self.leaf(place, Spot("set", frozenset(value)), value)
        elif isinstance(value, float) or is_number(value):
            self.leaf(place, Spot("float"), value)
        elif isinstance(value, int):
            self.leaf(place, Spot("int"), value)
        elif id(value) in self.seen:
            self.leaf(place, Spot("same", self.seen[id(value)]), value)
        elif isinstance(value, nn.Parameter) and place[:1] == (("attr", "param_groups"),):
            raise refuse(
                "optimizer",
                f"the optimizer holds a parameter {list(value.shape)} that is not the module's",
                hint="build the optimizer from the parameters of the module that is compiled",
            )
        elif isinstance(value, torch.Tensor):
            self.seen[id(value)] = place
            aval = Aval(tuple(value.shape), str(value.dtype).removeprefix("torch."))
            alone = value.numel() == 1 and value.is_floating_point() and not in_state(place)
            self.leaf(place, Spot("scalar" if alone else "tensor", aval), value)
        elif opaque(value):
            self.leaf(place, Spot("opaque", id(value)), value)
        else:
            self.seen[id(value)] = place
            self.container(value, place)

    def leaf(self, place: Place, spot: Spot, value: Any) -> None:
        self.at[place], self.values[place] = spot, value

    def container(self, value: Any, place: Place) -> None:
        kind, members = _members(value, self.names, self.key)
        maker = getattr(value, "maxlen", None) if isinstance(value, deque) else None
        self.at[place] = Spot(kind, (_type(value), maker, tuple(step for step, _ in members)))
        self.values[place] = value
        for step, member in members:
            self.visit(member, (*place, step))


def _type(value: Any) -> type:
    """Of a watched table of states: what it stands for."""
    return defaultdict if isinstance(value, defaultdict) else type(value)


def opaque(value: Any) -> bool:
    if isinstance(value, OPAQUE) or (callable(value) and not hasattr(value, "__dict__")):
        return True
    if isinstance(value, types.MethodType):
        return True
    return not isinstance(value, (*SEQUENCES, dict)) and not hasattr(value, "__dict__")


def _members(
    value: Any, names: Mapping[int, str], key: Callable[[Any], Any]
) -> tuple[str, list[tuple[tuple[str, Any], Any]]]:
    if isinstance(value, dict):
        found = []
        for name, member in dict.items(value):
            step = ("param", names[id(name)]) if id(name) in names else ("item", key(name))
            found.append((step, member))
        return "dict", found
    if isinstance(value, SEQUENCES):
        return "sequence", [(("item", i), member) for i, member in enumerate(value)]
    skipped = TORCHS if isinstance(value, torch.optim.Optimizer) else ()
    return "object", [(("attr", k), v) for k, v in vars(value).items() if k not in skipped]


def in_state(place: Place) -> bool:
    """Whether it belongs to a parameter."""
    return any(kind == "param" for kind, _ in place)


def double(root: Any, names: Mapping[int, str], leaf: Callable[[Place, Any], Any]) -> Any:
    """A copy of everything reached, with ``leaf(place, value)`` for each tensor, number and parameter. What is the same
    thing twice is so in the copy; what is opaque is the original."""
    memo: dict[int, Any] = {}
    methods: list[tuple[Any, str, types.MethodType]] = []

    def made(value: Any, place: Place) -> Any:
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, set | frozenset):
            return type(value)(value)
        if isinstance(value, int | float) and id(value) not in names:
            return leaf(place, value)
        if id(value) in memo:
            return memo[id(value)]
        if id(value) in names or isinstance(value, torch.Tensor):
            memo[id(value)] = leaf(place, value)
            return memo[id(value)]
        if opaque(value):
            return value
        _, members = _members(value, names, lambda name: name)
        if isinstance(value, dict):
            new: Any = defaultdict(value.default_factory) if isinstance(value, defaultdict) else _empty(value)
            memo[id(value)] = new
            originals = list(dict.keys(value))
            for (step, member), name in zip(members, originals, strict=True):
                dict.__setitem__(
                    new, leaf((), name) if id(name) in names else name, made(member, (*place, step))
                )
            return new
        if isinstance(value, SEQUENCES):
            items = [made(member, (*place, step)) for step, member in members]
            if isinstance(value, list):
                new = memo[id(value)] = _empty(value)
                new.extend(items)
                return new
            memo[id(value)] = _rebuilt(value, items)
            return memo[id(value)]
        new = memo[id(value)] = object.__new__(type(value))
        if isinstance(value, torch.optim.Optimizer):
            new._optimizer_step_pre_hooks, new._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        for (_, name), member in members:
            if isinstance(member, types.MethodType):
                methods.append((new, name, member))
            else:
                new.__dict__[name] = made(member, (*place, ("attr", name)))
        return new

    copy = made(root, ())
    for owner, name, method in methods:
        bound = memo.get(id(method.__self__), method.__self__)
        owner.__dict__[name] = types.MethodType(method.__func__, bound)
    return copy


def _empty(value: Any) -> Any:
    kind: Any = type(value)
    return kind() if kind in (dict, OrderedDict, list) else kind.__new__(kind)


def _rebuilt(value: Any, items: list[Any]) -> Any:
    if isinstance(value, deque):
        return deque(items, value.maxlen)
    return rebuilt(type(value), items)


def rebuilt(kind: Any, items: list[Any]) -> Any:
    """A list or a tuple of that kind."""
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def unmade(kind: Any) -> Any:
    """A dictionary of that kind, or an object, with nothing in it."""
    return defaultdict(dict) if kind is defaultdict else kind.__new__(kind)


def holder(root: Any, place: Place) -> tuple[Any, Any]:
    """(table, key) under which what stands at ``place`` is reached; an object's table is its ``__dict__``. Raises
    LookupError or AttributeError where the way is not there."""
    table: Any = root
    for kind, key in place[:-1]:
        table = vars(table)[key] if kind == "attr" else _item(table, key)
    kind, key = place[-1]
    return (vars(table) if kind == "attr" else table), key


def _item(table: Any, key: Any) -> Any:
    return dict.__getitem__(table, key) if isinstance(table, dict) else table[key]


def found(root: Any, place: Place, params: Mapping[str, torch.Tensor]) -> Any:
    """What stands at ``place`` now."""
    table, key = holder(root, keyed(place, params))
    return _item(table, key)


def keyed(place: Place, params: Mapping[str, torch.Tensor]) -> Place:
    """The place with parameters in the stead of their names."""
    return tuple(("item", params[key]) if kind == "param" else (kind, key) for kind, key in place)


def put(
    root: Any, table: Table, value: Callable[[Place, Spot, Any], Any], params: Mapping[str, torch.Tensor]
) -> None:
    """Makes ``root``, a copy of an optimizer, what ``table`` says and nothing else (into the live one: leaving.py).
    ``value(place, spot, old)`` is each tensor or number, from what stands there (None: nothing). Containers that are
    there stay the same objects."""
    made: dict[Place, Any] = {}

    def at(place: Place, old: Any) -> Any:
        spot = table.at[place]
        if spot.kind == "param":
            new = params[spot.detail]
        elif spot.kind == "same":
            new = made[spot.detail]
        elif spot.kind == "plain":
            new = spot.detail
        elif spot.kind == "set":
            new = old if old == spot.detail else set(spot.detail)
        elif spot.kind == "opaque":
            new = old if old is not None else table.values[place]
        elif spot.kind in CONTAINERS:
            return container(place, spot, old)
        else:
            new = value(place, spot, old)
        made[place] = new
        return new

    def container(place: Place, spot: Spot, old: Any) -> Any:
        kind, maxlen, steps = spot.detail
        if old is None or _type(old) is not kind:
            old = None
        if issubclass(kind, dict):
            new = old if old is not None else unmade(kind)
            made[place] = new
            mine = [params[k] if how == "param" else k for how, k in steps]
            kept = dict(dict.items(new))
            members = [(k, at((*place, step), kept.get(k))) for k, step in zip(mine, steps, strict=True)]
            for k in [k for k in kept if not any(k is m or _equal(k, m) for m in mine)]:
                dict.__delitem__(new, k)
            for k, member in members:
                dict.__setitem__(new, k, member)
            return new
        if issubclass(kind, SEQUENCES):
            kept_items = list(old) if old is not None else []
            items = [
                at((*place, step), kept_items[i] if i < len(kept_items) else None)
                for i, step in enumerate(steps)
            ]
            if issubclass(kind, list) and old is not None:
                made[place] = old
                old[:] = items
                return old
            if issubclass(kind, deque):
                made[place] = old if old is not None else deque(maxlen=maxlen)
                made[place].clear()
                made[place].extend(items)
            else:
                made[place] = rebuilt(kind, items)
            return made[place]
        new = old if old is not None else object.__new__(kind)
        made[place] = new
        skipped = TORCHS if isinstance(new, torch.optim.Optimizer) else ()
        for name in vars(new).keys() - {name for _, name in steps} - {*skipped}:  # which a step has made
            del vars(new)[name]
        for step in steps:
            member = at((*place, step), vars(new).get(step[1]))
            if not isinstance(vars(new).get(step[1]), types.MethodType):
                vars(new)[step[1]] = member
        return new

    at((), root)


def _equal(a: Any, b: Any) -> bool:
    return not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) and a == b
