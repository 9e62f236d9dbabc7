"""Tensors that forward puts into the module: a buffer that is bound anew is written, anything else must not matter."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.where import here
from detente.bridge.graph import Where
from detente.bridge.live.places import has
from detente.bridge.live.sources import DEPTH, OF_A_TRACE, Sources, found_in, tensors_in
from detente.bridge.private import make_subclass, pytree, without_subclasses
from detente.bridge.refusal import Reason, refuse

_ONCE = (
    "call the module once in PyTorch before detente.compile: what a first call makes is there then; a buffer that has "
    "another shape after every step is no state of a fixed program"
)


@dataclass(frozen=True)
class Left:
    """What holds a tensor that a trace left under ``key`` of a part's own table, or (``registered``) of that of its
    buffers, or in another place of Python's: the tensor itself, a tuple or an object with it in, or (``number``) a
    number that was read of one. ``held`` is that, with the trace's values in. ``fresh``: where nothing was, as a cache
    is filled. ``constant``: it follows from nothing that the program is given, and from no draw."""

    table: Any
    key: Any
    held: Any
    name: str
    fresh: bool = False
    constant: bool = False
    mark: int = 0  # the id of what was left, for as long as that is there
    where: Where | None = None
    registered: bool = False
    number: bool = False
    values: tuple[torch.Tensor, ...] = ()  # of the trace: results of the program for this place
    results: tuple[Any, ...] = ()  # those, as values of the graph
    template: tuple[Any] | None = (
        None  # what is held with a leaf for each of them (kept.py); None: it has none
    )
    said: tuple[str, ...] = ()  # plain values in it
    read: frozenset[int] = frozenset()  # ids of what stood in somewhere, and was asked for something

    @property
    def reason(self) -> Reason:
        what = "a number of a tensor's" if self.number else "a tensor"
        return Reason(
            "held-tensor",
            f"forward keeps {what} in {self.name}, and with it there the next step is another program",
            self.where,
            _ONCE if self.registered else "",
        )


class Held:
    """What a module holds when its forward begins."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = [
            (part._buffers, key, tensor, f"{path}.{key}" if path else key)
            for path, part in model.named_modules()
            for key, tensor in part._buffers.items()
        ]
        self.parameters = [
            (part._parameters, dict(part._parameters), path) for path, part in model.named_modules()
        ]
        self.trained = {name: (tensor, tensor.requires_grad) for name, tensor in model.named_parameters()}
        self.own = [(vars(part), dict(vars(part)), path) for path, part in model.named_modules()]
        # (what was a buffer before is written, above; here a buffer is one more place for a tensor)
        self.registered = [(part._buffers, dict(part._buffers), path) for path, part in model.named_modules()]
        self._lines: dict[tuple[int, str], Where] = {}

    def put_back(self) -> None:
        """After a trace that failed: every tensor where it was. What the trace made has no values."""
        for table, before, _ in (*self.registered, *self.parameters, *self.own):
            for key in [k for k, now in table.items() if isinstance(now, torch.Tensor) and k not in before]:
                del table[key]
            for key, then in before.items():
                now = table.get(key)
                if now is not then and (isinstance(then, torch.Tensor) or isinstance(now, torch.Tensor)):
                    table[key] = then

    @contextmanager
    def noting_lines(self) -> Iterator[None]:
        """While forward runs: the line that sets a tensor as an attribute of a part. A write past ``setattr``, into a
        table of the part itself, has none."""
        parts, lines = {id(table) for table, _, _ in self.own}, self._lines
        set_plainly, register = nn.Module.__setattr__, nn.Module.register_buffer

        def note(part: nn.Module, name: str, value: Any) -> None:
            if isinstance(value, torch.Tensor) and id(vars(part)) in parts:
                lines[id(vars(part)), name] = here()

        def noted(part: nn.Module, name: str, value: Any) -> None:
            note(part, name, value)
            set_plainly(part, name, value)

        def registered(part: nn.Module, name: str, tensor: Any, persistent: bool = True) -> None:
            note(part, name, tensor)
            register(part, name, tensor, persistent)

        nn.Module.__setattr__, nn.Module.register_buffer = noted, registered  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__setattr__, nn.Module.register_buffer = set_plainly, register  # type: ignore[method-assign]

    def _line(self, path: str, key: str) -> Where | None:
        """Of what was set under ``key`` in the part at ``path``."""
        table = next(table for table, _, at in self.own if at == path)
        return self._lines.get((id(table), key))

    def written_in_place(self) -> tuple[Left, ...]:
        """Called when the forward is over: what was bound anew is written into the buffer that was there, which is what
        the next step reads. Returns the tensors that were left in attributes."""
        for table, before, path in self.parameters:
            for key in table.keys() | before.keys():
                if table.get(key) is not before.get(key):
                    name = f"{path}.{key}" if path else key
                    what = f"forward puts another parameter in the place of {name}"
                    raise refuse("parameter", what, self._line(path, key))
        for name, (tensor, trained) in self.trained.items():
            # (what was written with a gradient is no leaf any more, and is refused by its line)
            if tensor.is_leaf and tensor.requires_grad != trained:
                raise refuse(
                    "parameter",
                    f"forward sets {name}.requires_grad to {tensor.requires_grad}",
                    hint="set it between two steps, where the step takes it over",
                )
        for table, key, before, name in self.buffers:
            now = table.get(key)
            if now is before:
                continue
            line = self._line(name.rpartition(".")[0], key)
            if before is None or not isinstance(now, torch.Tensor):
                what = f"forward sets buffer {name}, which was {_said(before)}, to {_said(now)}"
                raise refuse("held-tensor", what, line, _ONCE if before is None else "")
            if now.shape != before.shape or now.dtype != before.dtype:
                what = f"forward sets buffer {name} from {_said(before)} to {_said(now)}"
                raise refuse("held-tensor", what, line, _ONCE)
            before.copy_(now.detach())
            table[key] = before
        left = []
        places = (*((row, False) for row in self.own), *((row, True) for row in self.registered))
        for (table, before, path), registered in places:
            for key, now in list(table.items()):
                if not isinstance(now, torch.Tensor) or now is before.get(key):
                    continue
                name = f"{path}.{key}" if path else key
                if key in before:
                    table[key] = before[key]
                else:
                    del table[key]
                line = self._line(path, key)
                fresh = not registered and before.get(key) is None
                left.append(Left(table, key, now, name, fresh, where=line, registered=registered))
        return tuple(left)


def left_in_python(before: Sources) -> tuple[Left, ...]:
    """What holds tensors, and numbers of theirs, that the code left in dictionaries, closures and objects."""
    found = []
    for table, key, then, now, name in before.left():
        number = next(tensors_in(now), None) is None
        found.append(Left(table, key, now, name, then is None, mark=id(now), number=number))
    return tuple(found)


class Standing(torch.Tensor):
    """Zeros that stand for a tensor that a trace left, and note whether anything is asked of them."""

    plain: torch.Tensor
    noted: set[int] | None = None

    @staticmethod
    def of(plain: torch.Tensor) -> Standing:
        made = make_subclass(Standing, torch.empty(plain.shape, dtype=plain.dtype, device="meta"))
        made.plain = plain
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def of(value: Any) -> Any:
            if not isinstance(value, Standing):
                return value
            if Standing.noted is not None:
                Standing.noted.add(id(value))
            return value.plain

        with without_subclasses():
            args, kwargs = pytree.tree_map(of, (args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def noting_reads() -> Iterator[set[int]]:
    """The ids of what stands in somewhere, and is asked for anything while the block runs. That it is there, and no
    None, is not asked."""
    before, Standing.noted = Standing.noted, set()
    try:
        yield Standing.noted
    finally:
        Standing.noted = before


def read_of(value: Any, read: frozenset[int]) -> bool:
    """Whether one of the tensors in what stood in somewhere is among those that were ``read``."""
    return any(id(one) in read for one in found_in(value, Standing))


def without_values(value: Any, stand: Callable[[torch.Tensor], Any] = lambda zeros: zeros) -> Any:
    """The same with zeros where a trace's tensors are, and a number that no code holds where its numbers are."""

    def nothing(held: Any) -> Any:
        if isinstance(held, torch.Tensor):
            return stand(torch.zeros(tuple(held.shape), dtype=held.dtype))
        return NUMBER

    return with_each(value, OF_A_TRACE, nothing)


def with_each(value: Any, kinds: Any, make: Callable[[Any], Any], depth: int = DEPTH) -> Any:
    """``value`` with ``make(one)`` in the place of each object of these ``kinds``, in containers and objects of its
    own."""
    if isinstance(value, kinds):
        return make(value)
    if not depth or next(found_in(value, kinds, depth), None) is None:
        return value

    def inner(held: Any) -> Any:
        return with_each(held, kinds, make, depth - 1)

    if isinstance(value, defaultdict):
        return type(value)(value.default_factory, ((k, inner(v)) for k, v in value.items()))
    if isinstance(value, dict):
        return type(value)((k, inner(v)) for k, v in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(inner, value))
    if isinstance(value, deque):
        return deque(map(inner, value), value.maxlen)
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(map(inner, value))
    made = copy.copy(value)
    vars(made).update({k: inner(v) for k, v in vars(value).items()})
    return made


@contextmanager
def standing_in(left: Sequence[Left]) -> Iterator[list[Any]]:
    """What stands in where a trace left tensors and numbers, and what was there before at the end. Yields what stands
    in, in that order."""
    before = [
        (one.table, one.key, one.table[one.key] if has(one.table, one.key) else _NOTHING) for one in left
    ]
    for one in left:
        one.table[one.key] = without_values(one.held, Standing.of)
    try:
        yield [one.table[one.key] for one in left]
    finally:
        for table, key, then in before:
            if then is _NOTHING:
                if has(table, key):
                    del table[key]
            else:
                table[key] = then


_NOTHING, NUMBER = object(), 0.8372915604


def _said(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
