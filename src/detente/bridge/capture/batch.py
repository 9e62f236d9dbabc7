"""The batch: any pytree of tensors and plain values, taken apart and put together again.

Tensors become inputs of the program. Everything else (numbers, strings, flags) is *static*: it is part of the
program, and another value is another program.
"""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from detente.bridge.capture.traits import PLAIN, Odd, odd, untakeable
from detente.bridge.graph import Aval
from detente.bridge.live.moving_number import MovingNumber, stands
from detente.bridge.live.places import Slots
from detente.bridge.live.unasked import Unasked, unasked
from detente.bridge.private import pytree
from detente.bridge.refusal import Reason, Refused, refuse

_ARRAY = "torch.from_numpy makes it a tensor"
_NUMPYS = "hand over its item(), a number of Python's, or torch.as_tensor of it"
_OWN = "put its tensors into a tuple, a dictionary or a dataclass"


@dataclass(frozen=True)
class Layout:
    """How a pytree comes apart: ``spec`` its structure, ``avals`` one ``Aval`` per tensor leaf, ``paths``
    their names, ``static`` the other leaves as ``(position, value)``, ``labels`` the names of those, ``tracked`` which
    tensors require a gradient (a loss may ask, and does something else with those), ``floats`` which of them hold a
    float of Python's that is another one in every batch, ``unasked`` the positions of plain values that are and of
    which nobody asks anything. Equal layouts run the same program.

    ``strides`` is how each tensor lies in memory, ``odd`` has those that are no ordinary ones, by their number, and
    ``same`` for each tensor the number of the first that is this very object; empty where no two are one. A loss may
    ask for all of these.

    Leaves stand in an order that does not depend on that of a dictionary's keys: ``order`` says where each stands in
    ``spec``, and ``shape`` is the structure in words, equal for the same keys in any order. A loss may go through the
    values as they come, so another order is another program.
    """

    spec: Any
    avals: tuple[Aval, ...]
    paths: tuple[str, ...]
    static: tuple[tuple[int, Any], ...]
    order: tuple[int, ...]
    shape: str
    tracked: tuple[bool, ...]
    strides: tuple[tuple[int, ...], ...] = ()
    odd: tuple[tuple[int, Odd], ...] = ()
    same: tuple[int, ...] = ()
    floats: frozenset[int] = frozenset()
    unasked: frozenset[int] = frozenset()
    labels: tuple[str, ...] = ()

    def build(self, tensors: Sequence[Any]) -> Any:
        """The pytree again, from one value per tensor leaf."""
        return self.build_with(
            self.nobodys, [MovingNumber(t) if i in self.floats else t for i, t in enumerate(tensors)]
        )

    @property
    def nobodys(self) -> dict[int, Any]:
        """What stands for the values that nobody asks for, by position."""
        return {i: Unasked(value) for i, value in self.static if i in self.unasked}

    def build_for_eager(self, tensors: Sequence[Any]) -> Any:
        """The same with plain floats, and plain values as they are."""
        return self.build_with({}, [t.item() if i in self.floats else t for i, t in enumerate(tensors)])

    def build_with(self, others: Mapping[int, Any], tensors: Sequence[Any]) -> Any:
        """The same with ``others`` (by position) in the place of plain values."""
        if self.same:
            tensors = [tensors[first] for first in self.same]
        for number, trait in self.odd:
            trait.put_on(tensors[number])
        fixed = dict(self.static) | dict(others)
        rest = iter(tensors)
        leaves: list[Any] = [None] * len(self.order)
        for position, place in enumerate(self.order):
            leaves[place] = fixed[position] if position in fixed else next(rest)
        return pytree.tree_unflatten(leaves, self.spec)

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable, equal for equal layouts (``1``, ``1.0`` and ``True`` are different values here)."""
        static = tuple(
            (i, type(v).__name__, *(() if i in self.unasked else (repr(v),))) for i, v in self.static
        )
        avals = tuple(zip(self.avals, self.tracked, strict=True))
        order = (self.order, self.floats) if self.floats else self.order
        return (self.shape, avals, static, order, self.traits)

    @property
    def traits(self) -> tuple[Any, ...]:
        """What most programs do not ask for (``Variants``): two that differ in nothing else are often one."""
        return (self.strides, tuple((number, trait.key) for number, trait in self.odd), self.same)


def kinds(spec: Any) -> list[type]:
    """The classes that a structure is made of: a loss may call their methods."""
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    inner = [kind for child in children for kind in kinds(child)]
    return [k for k in (spec.type, spec.context) if isinstance(k, type)] + inner


def aval(tensor: torch.Tensor) -> Aval:
    """Shape and dtype of a tensor, in the neutral graph's words."""
    return Aval(tuple([int(n) for n in tensor.shape]), _NAMES.get(tensor.dtype) or _named(tensor.dtype))


def _named(dtype: torch.dtype) -> str:
    _NAMES[dtype] = name = str(dtype).removeprefix("torch.")
    return name


_NAMES: dict[torch.dtype, str] = {}


def flatten(tree: Any, name: str = "batch", *, given: bool = True) -> tuple[list[torch.Tensor], Layout]:
    """Tensor leaves in order, and the layout. Raises Refused (``batch``) for leaves that may hide tensors, and for
    tensors that no program can have. ``given``: by the user; else they are what a loss gives back, or stand for a
    batch's, and nobody asks what they are."""
    pairs, spec, order, shape = apart(tree)
    tensors: list[torch.Tensor] = []
    paths: list[str] = []
    static: list[tuple[int, Any]] = []
    labels: list[str] = []
    bad: list[Reason] = []
    floats: set[int] = set()
    nobodys: set[int] = set()
    for position, (path, one) in enumerate(pairs):
        where = name + pytree.keystr(path)
        if stands(one):
            floats.add(len(tensors))
        leaf = one.tensor if stands(one) else one
        if isinstance(leaf, torch.Tensor):
            if given and (reason := untakeable(leaf, where)) is not None:
                bad.append(reason)
            tensors.append(leaf)
            paths.append(where)
        elif unasked(leaf):
            static.append((position, leaf.value))
            labels.append(where)
            nobodys.add(position)
        elif isinstance(leaf, PLAIN):
            static.append((position, leaf))
            labels.append(where)
        else:
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            hint = (
                _NUMPYS if isinstance(leaf, np.generic) else _ARRAY if isinstance(leaf, np.ndarray) else _OWN
            )
            bad.append(
                Reason(
                    "batch", f"{where} is a {kind}, which is neither a tensor nor a plain value", None, hint
                )
            )
    if bad:
        raise Refused(bad)
    avals, tracked = tuple(aval(t) for t in tensors), tuple(bool(t.requires_grad) for t in tensors)
    strides = tuple([t.stride() for t in tensors]) if given else ()
    odds = (
        tuple([(i, found) for i, t in enumerate(tensors) if (found := odd(t)) is not None]) if given else ()
    )
    same = _same(tensors)
    fixed = spec, avals, tuple(paths), tuple(static), tuple(order), shape, tracked
    return tensors, Layout(*fixed, strides, odds, same, frozenset(floats), frozenset(nobodys), tuple(labels))


def leaves(tree: Any) -> dict[str, Any]:
    """Each leaf of a batch by its name. A container that is none torch knows (the loss may put anything into its batch)
    is one leaf."""
    return {"batch" + pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(tree)[0]}


def _same(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """For each the number of the first that is this object; empty where no two are one."""
    ids = [*map(id, tensors)]
    return tuple([ids.index(one) for one in ids]) if len({*ids}) < len(ids) else ()


def none_trained(tree: Any, trained: Mapping[str, torch.Tensor]) -> None:
    """Raises Refused for a batch with a parameter in it that the step trains: in eager its gradient has this part, too,
    and a program is given a copy."""
    names = {id(tensor): name for name, tensor in trained.items()}
    tensors, layout = flatten(tree)
    bad = [
        Reason(
            "batch",
            f"{path} is the module's own {names[id(tensor)]}, whose gradient would not see what the batch does with it",
            None,
            f"read it in the loss (model.{names[id(tensor)]}), or hand over a copy, detach().clone()",
        )
        for path, tensor in zip(layout.paths, tensors, strict=True)
        if id(tensor) in names
    ]
    if bad:
        raise Refused(bad)


def distinct(tree: Any) -> Any:
    """The batch with another object for each leaf, for a program whose later batches are arrays: that two of this one's
    leaves are one tensor says nothing of those."""
    tensors, layout = flatten(tree)
    if not layout.same:
        return tree
    rows = enumerate(zip(tensors, layout.same, strict=True))
    own = [t if i == first else t.detach().requires_grad_(t.requires_grad) for i, (t, first) in rows]
    return dataclasses.replace(layout, same=()).build(own)


def same_when_built(tensors: Sequence[torch.Tensor], layout: Layout) -> None:
    """Raises Refused where a container makes other tensors of what it is built from (a class of the user's own that
    torch was taught, a graph): the program would see them changed once more."""
    again, other = flatten(layout.build(tensors))
    if other.key != layout.key or any(a is not b for a, b in zip(again, tensors, strict=True)):
        names = sorted({kind.__qualname__ for kind in kinds(layout.spec)} - {"tuple", "list", "dict"})
        raise refuse(
            "batch",
            f"a batch that is built again from its tensors holds others ({', '.join(names) or 'its containers'})",
            hint=_OWN,
        )


def apart(tree: Any) -> tuple[list[tuple[Any, Any]], Any, list[int], str]:
    """(path, leaf) of every leaf in the layout's order, the structure, where each stands in it, and its shape."""
    _register(tree)
    # torch builds a size again as a tuple.
    pairs, spec = pytree.tree_flatten_with_path(tree, is_leaf=lambda one: type(one) is torch.Size)
    shape, order = _canonical(spec, 0)
    return [pairs[place] for place in order], spec, order, shape


def _canonical(spec: Any, start: int) -> tuple[str, list[int]]:
    """The structure in words and the places of its leaves, ``start`` the first; dictionaries by sorted keys."""
    if spec.is_leaf():
        return "*", [start]
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    parts: list[tuple[str, list[int]]] = []
    for child in children:
        parts.append(_canonical(child, start))
        start += child.num_leaves
    keys = [""] * len(parts)
    # torch calls every named tuple by the function that makes them.
    kind = spec.type if isinstance(spec.type, type) else object
    unordered = kind is dict or issubclass(kind, UserDict | SimpleNamespace) or kind in _OBJECTS
    if unordered:
        keys = [f"{type(key).__name__} {key!r}: " for key in spec.context]
        both = sorted(zip(keys, parts, strict=True), key=lambda pair: pair[0])
        keys, parts = [key for key, _ in both], [part for _, part in both]
    inner = ", ".join(key + shape for key, (shape, _) in zip(keys, parts, strict=True))
    context = "" if unordered else f" {spec.context!r}"
    return f"{spec.type.__qualname__}{context}({inner})", [place for _, found in parts for place in found]


def _register(tree: Any) -> None:
    """Teach torch's pytree the containers met in this batch: dataclasses, namespaces, mappings (``BatchEncoding`` is a
    ``UserDict``), and graphs of PyG."""
    for leaf in pytree.tree_leaves(tree):
        kind = type(leaf)
        if isinstance(leaf, UserDict):
            _teach(kind, lambda d: d.items(), lambda v, k, t=kind: _rebuild(t, v, k))
            _register(list(leaf.values()))
        elif isinstance(leaf, SimpleNamespace):
            _teach(kind, lambda n: vars(n).items(), lambda v, k, t=kind: _again(t, v, k))
            _register(list(vars(leaf).values()))
        elif _is_graph(leaf):
            _teach(
                kind,
                lambda g: g.to_dict().items(),
                lambda v, k, t=kind: t.from_dict(dict(zip(k, v, strict=True))),
            )
            _register(list(leaf.to_dict().values()))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and _in_c(kind) is object:
            _OBJECTS.add(kind)
            _teach(kind, _state, lambda v, k, t=kind: _again(t, v, k), pytree.GetAttrKey)
            _register([value for _, value in _state(leaf)])


_HEAP = 1 << 9  # of a class's flags: it was made by Python code
_OBJECTS: set[type] = set()  # dataclasses that torch's pytree was taught here


def _state(holder: Any) -> list[tuple[str, Any]]:
    """What an object holds, whether it has a field for it or not: in its table, and in its slots."""
    return [*getattr(holder, "__dict__", {}).items(), *Slots(holder).items()]


def _in_c(kind: type) -> Any:
    """The nearest class of Python's own that a class is made from: what it holds beside attributes, that one makes."""
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP)


def _again(kind: type, values: Sequence[Any], names: Sequence[str]) -> Any:
    """An object that holds these, as a copy would: its class is not called, whose ``__post_init__`` would change them a
    second time, and which takes no field with ``init=False``."""
    made: Any = _in_c(kind).__new__(kind)
    slots, table = Slots(made), getattr(made, "__dict__", None)
    for name, value in zip(names, values, strict=True):
        if table is None or name in slots.names:
            slots[name] = value
        else:
            table[name] = value
    return made


def _teach(kind: type, items: Any, build: Any, key: Any = pytree.MappingKey) -> None:
    """``items`` gives (name, value) pairs of a container, and ``build`` makes it again from values and names."""

    def flat(container: Any) -> tuple[list[Any], list[Any]]:
        pairs = list(items(container))
        return [value for _, value in pairs], [name for name, _ in pairs]

    def named(container: Any) -> tuple[list[Any], list[Any]]:
        pairs = list(items(container))
        return [(key(name), value) for name, value in pairs], [name for name, _ in pairs]

    pytree.register_pytree_node(kind, flat, build, flatten_with_keys_fn=named)


def _is_graph(leaf: Any) -> bool:
    """PyG's Data and Batch, which need not be installed."""
    return any(k.__module__.startswith("torch_geometric.data") for k in type(leaf).__mro__) and hasattr(
        type(leaf), "from_dict"
    )


def _rebuild(kind: type, values: Sequence[Any], keys: Sequence[Any]) -> Any:
    made: Any = object.__new__(kind)
    made.data = dict(zip(keys, values, strict=True))
    if any(k.__module__.startswith("transformers.") for k in kind.__mro__):
        # What BatchEncoding reads of itself. Others are not asked: their ``__getattr__`` may raise KeyError.
        vars(made).setdefault("_encodings", None)
        vars(made).setdefault("_n_sequences", None)
    return made
