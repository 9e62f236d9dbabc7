"""What forward leaves in Python that no later step reads, and a loop looks at behind the step: how many tokens each
expert got, activations that a hook puts into a dictionary, the masked weight of ``torch.nn.utils.prune``, a number that
is logged (``.item()``).

Each tensor, and each number that was read of one, is a result of the program beside the loss, and stands behind every
step where eager leaves it. A tensor of the module itself, or a view of one, is the live one there.

How it can fail: a tensor of a transform or of a branch is no value of the program, one that is left in the first call
alone is none of every step, and results are not as large as they like (``ROOM``). Such places stay as they were before
the capture, and their names are told (``unkept``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from detente.bridge.capture.batch import aval
from detente.bridge.capture.held import NUMBER, Left, with_each
from detente.bridge.capture.lasting import Lasting, lasting
from detente.bridge.capture.markers import of_every_turn
from detente.bridge.graph import Aval, Graph, Output, Ref, computing, node_refs, refs, without_dead
from detente.bridge.live.places import place
from detente.bridge.live.python import PLAIN
from detente.bridge.live.sources import OF_A_TRACE
from detente.bridge.live.writes import same
from detente.bridge.private import FakeTensor, plainly
from detente.bridge.refusal import Refused

ROOM = (
    64 << 20
)  # bytes of results that are kept; as many as the module's own tensors have, where those are more
_NUMBERS = {torch.SymFloat: torch.float64, torch.SymInt: torch.int64}


@dataclass(frozen=True)
class Leaf:
    """Stands in a kept value for the ``index``-th of the program's kept results. ``number``: for a number of
    Python's."""

    index: int
    aval: Aval
    number: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.aval.shape) * getattr(torch, self.aval.dtype).itemsize


@dataclass(frozen=True)
class Kept:
    """``value`` stands under ``key`` of ``table`` behind every step: as forward left it, with a ``Leaf`` or a
    ``Lasting`` in the place of each tensor of the trace. ``path`` is that of the part whose own table it is, by which a
    stored program finds it again; None of any other. ``said`` are the plain values beside the tensors.
    ``unread``: forward asks nothing of what it finds there, but whether there is something."""

    table: Any
    key: Any
    name: str
    value: Any
    path: str | None = None
    said: tuple[str, ...] = ()
    unread: bool = False

    def fits(self, value: Any) -> bool:
        """Whether this could stand in the place as well, and the program would be the same."""
        return _fits(self.value, value, self.unread)

    def filled(self, of: Callable[[Leaf | Lasting], Any]) -> Any:
        return filled(self.value, of)

    def __getstate__(self) -> dict[str, Any]:
        if self.path is None:
            raise TypeError(f"{self.name} is in no table that another process finds")
        return {**vars(self), "table": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def without_value(leaf: Leaf | Lasting) -> Any:
    """What may stand for a leaf in another capture."""
    if isinstance(leaf, Lasting):
        return torch.zeros(leaf.size or ())
    zeros = torch.zeros(leaf.aval.shape, dtype=getattr(torch, leaf.aval.dtype))
    return NUMBER if leaf.number else zeros


def _fits(template: Any, value: Any, any_tensor: bool) -> bool:
    """Whether a value is made as the template is. ``any_tensor``: of tensors shape and dtype are no matter."""

    def within(parts: Iterable[Any], others: Iterable[Any]) -> bool:
        return all(_fits(part, other, any_tensor) for part, other in zip(parts, others, strict=True))

    if isinstance(template, Leaf) and template.number:
        return type(value) in (int, float)
    if isinstance(template, Leaf | Lasting):
        known = isinstance(value, torch.Tensor)
        return known and (
            any_tensor or (isinstance(template, Leaf) and plainly(aval, value) == template.aval)
        )
    if template is value or same(template, value):
        return True
    if type(template) is not type(value) or isinstance(template, PLAIN):
        return False
    if isinstance(template, dict):
        return list(template) == list(value) and within(template.values(), value.values())
    if isinstance(template, list | tuple | deque):
        return len(template) == len(value) and within(template, value)
    own, other = getattr(template, "__dict__", None), getattr(value, "__dict__", None)
    return own is not None and other is not None and _fits(own, other, any_tensor)


def filled(template: Any, of: Callable[[Any], Any]) -> Any:
    """A kept value with ``of(leaf)`` in the place of each leaf, in containers of its own."""
    return with_each(template, (Leaf, Lasting), of)


@dataclass(frozen=True)
class Leaving:
    """The places in which a trace left something, and the ``graph`` whose last results are the values of it. ``read``:
    ids of what stood in for such things, and was read."""

    places: tuple[Left, ...]
    graph: Graph
    read: frozenset[int] = frozenset()


class _NoValue(Exception):
    """It is no value of the program."""


def offered(left: Iterable[Left], named: Iterable[tuple[str, torch.Tensor]]) -> tuple[Left, ...]:
    """Called at the end of a trace: each with the tensors that are results of the program for it. ``named`` are the
    module's own."""
    known = list(left)
    if not known:
        return ()
    own, whole = list(named), of_every_turn()
    return tuple(_offered(one, own, whole) for one in known)


def _offered(
    left: Left, own: Sequence[tuple[str, torch.Tensor]], whole: Callable[[torch.Tensor], bool]
) -> Left:
    values: list[torch.Tensor] = []

    def leaf(value: Any) -> Any:
        number = not isinstance(value, torch.Tensor)
        if not number and not isinstance(value, FakeTensor):
            return value  # it was there before the trace, and eager leaves the same one
        if number and type(value) in _NUMBERS:
            value = torch.scalar_tensor(value, dtype=_NUMBERS[type(value)])
        if not isinstance(value, torch.Tensor) or not whole(value):
            raise _NoValue
        values.append(value)
        return Leaf(len(values) - 1, aval(value), number)

    try:
        template = with_each(left.held, OF_A_TRACE, leaf)
        live = {one.leaf: one for one in lasting(values, own)}
    except (_NoValue, Refused, RuntimeError, TypeError, ValueError):
        return left
    template = filled(template, lambda one: live.get(one.index, one))
    return replace(left, values=tuple(values), template=(template,), said=tuple(_plain(template)))


def _plain(value: Any) -> Iterator[str]:
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, dict):
        yield from (repr(key) for key in value)
        for item in value.values():
            yield from _plain(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _plain(item)


def apart(graph: Graph, left: Sequence[Left]) -> tuple[Graph, Leaving]:
    """The graph without the results that are there for what the trace left, and those. What is ``fresh`` is that no
    longer where it follows from weights, a batch, a draw or a buffer that the step writes: the next step finds that of
    this one."""
    count = sum(len(one.values) for one in left)
    aux = [output for output in graph.outputs if output.kind == "aux"]
    looked_at = aux[len(aux) - count :]
    own = [output for output in graph.outputs if all(output is not other for other in looked_at)]
    written = {output.name for output in own if output.kind == "buffer"}
    moving = {
        item.id
        for item in graph.inputs
        if item.kind != "constant" and (item.kind != "buffer" or item.name in written)
    }
    given = {item.id for item in graph.inputs if item.kind != "constant"}
    for node in graph.nodes:
        for ids in (moving, given):
            if node.draw is not None or any(ref.id in ids for ref in node_refs(node)):
                ids.add(node.id)
    rest, found = iter(looked_at), []
    for one in left:
        results = tuple(next(rest).value for _ in one.values)
        read = {ref.id for result in results for ref in refs(result)}
        fresh = one.fresh and one.template is not None and not read & moving
        constant = bool(results) and one.template is not None and not read & given
        found.append(replace(one, fresh=fresh, constant=constant, values=(), results=results))
    bare = without_dead(replace(graph, outputs=tuple(own))) if count else graph
    return bare, Leaving(tuple(found), graph)


def computed_by(graph: Graph, results: Iterable[Any]) -> list[tuple[Any, ...]]:
    """What computes these results, in words that say nothing of the nodes' numbers."""
    found = []
    for node in computing(graph, (ref.id for result in results for ref in refs(result))):
        plain = [x for x in _flat((node.args, node.kwargs)) if not isinstance(x, Ref)]
        found.append((node.op, repr(plain), sum(1 for _ in node_refs(node))))
    return found


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def keeping(
    bare: Graph,
    whole: Graph,
    left: Iterable[Left],
    paths: Mapping[int, str],
    read: Collection[Any],
    room: int,
) -> tuple[Graph, tuple[Kept, ...], tuple[str, ...]]:
    """``bare`` (what ``apart`` gave of ``whole``) with the results that the places of ``left`` need, those places, and
    the names of those that stay as they were. ``paths`` are those of the module's own tables by id; ``read`` are the
    places that forward reads, whatever for; ``room`` is in bytes, and the smallest come first."""
    indices: dict[Any, int] = {}
    made: list[Kept] = []
    unkept: list[str] = []
    for one in sorted(left, key=lambda one: sum(leaf.nbytes for leaf in _leaves(one))):
        fresh = {one.results[leaf.index]: leaf.nbytes for leaf in _leaves(one)}
        needed = sum(size for result, size in fresh.items() if result not in indices)
        if one.template is None or needed > room:
            unkept.append(one.name)
            continue
        room -= needed
        for result in fresh:
            indices.setdefault(result, len(indices))

        def numbered(leaf: Any, own: tuple[Any, ...] = one.results) -> Any:
            return replace(leaf, index=indices[own[leaf.index]]) if isinstance(leaf, Leaf) else leaf

        value = filled(one.template[0], numbered)
        unread = place(one.table, one.key) not in read
        path = paths.get(id(one.table))
        made.append(Kept(one.table, one.key, one.name, value, path, one.said, unread))
    if not indices:
        return bare, tuple(made), tuple(unkept)
    outputs = (*bare.outputs, *(Output("kept", "kept", result) for result in indices))
    return without_dead(replace(whole, outputs=outputs)), tuple(made), tuple(unkept)


def _leaves(left: Left) -> list[Leaf]:
    found: list[Leaf] = []
    if left.template is not None:
        filled(left.template[0], lambda leaf: found.append(leaf) if isinstance(leaf, Leaf) else None)
    return found
