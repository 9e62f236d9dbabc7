"""Questions that Python asks of a batch's values (``if mask.any():``, ``x[mask]``), settled by the example batch.

A program has one control flow and static shapes, so what depends on values is refused. But where the answer depends on
the batch alone (whether anything is padded, how many labels count), the program can be made for the answer that the
example batch gives, and check at every step that it is still the answer: a *settled* question. A compiled step asks it
ahead of every step (``ahead.py``), of the batch and of buffers that the step changes, and has a program for each answer
that was met. Where that cannot be done, another answer is a fault, raised with the user's line when the loss is read,
never a silent difference. A question about weights or about random numbers stays refused: its answer would not last.
Not so a guard (``guards.py``): at another answer eager torch raises, and so does the program.

How: the loss runs once in eager torch, on copies, and what is asked at which line is written down (``Asked``); then
it is captured again with the answers given (``Given``). Floats stay numbers of the program, which may only be shown;
where that fails those without a fraction are given, too (``torch.ceil(length / stride).item()``). Others torch and XLA
may round differently, which would be two answers.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.overrides
from torch import nn
from torch.overrides import TorchFunctionMode

from detente.bridge.capture import memory, read_values
from detente.bridge.capture.batch import flatten
from detente.bridge.capture.guards import guard
from detente.bridge.capture.where import here
from detente.bridge.copies import copied
from detente.bridge.graph import Graph, Node, node_refs
from detente.bridge.private import pytree
from detente.bridge.refusal import Reason, Refused

Key = tuple[str, int, str]  # file, line, what is asked

SETTLED = (
    "this program was made for another answer to what is asked here; for this batch compile another step, with share= "
    "this one, or call detente.functional again"
)
COUNTED = f"{SETTLED} (how many there are)"

# calls by name, and what they ask: the number itself, whether it is true, where the true elements are
_NUMBERS = {"__bool__": "bool", "is_nonzero": "bool", "__int__": "int", "__index__": "int", "item": "int"}

# Elements of a list of Python's that a tensor becomes: each is asked for by itself.
_LISTED = 64

# calls that make a tensor, and the argument from which on a 0-d tensor is asked for its number by torch itself
_SIZED = {"arange": 0, "zeros": 0, "ones": 0, "empty": 0, "new_zeros": 1, "new_ones": 1, "new_empty": 1}


@dataclass
class Answers:
    """What was asked while the loss ran: by place, in order."""

    rows: dict[Key, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def whole(self) -> bool:
        """Whether a float without a fraction is among them."""
        return any(_whole(value) for row in self.rows.values() for value in row)


def _whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _place(kind: str) -> Key:
    """The innermost line that is the user's or a library's."""
    found = here()
    return found.file, found.line, kind


# Files whose frames stand between a question and torch's answer.
_MODES = {__file__, memory.__file__, read_values.__file__, torch.overrides.__file__}


def _asker() -> tuple[str, int]:
    """The line that asks, torch's own lines included: the first outside the capture's modes and torch's dispatch to
    them."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _MODES:
        frame = frame.f_back
    return ("?", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


@functools.cache
def _open(func: Any) -> Any:
    """A function that torch wrote in Python, made to run inside a mode instead of being handed to it whole: what it
    asks (gaussian_nll_loss: is a variance negative?) is seen. None for everything else."""
    if not isinstance(func, types.FunctionType) or func.__module__ != torch.nn.functional.__name__:
        return None
    handed = {name: _not_handed for name in func.__code__.co_names if name in _HANDED}
    if not handed:
        return None
    inner = types.FunctionType(
        func.__code__, {**func.__globals__, **handed}, func.__name__, func.__defaults__, func.__closure__
    )
    inner.__kwdefaults__ = func.__kwdefaults__
    return inner


_HANDED = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _not_handed(*_: Any) -> bool:
    return False


class _Questions(TorchFunctionMode):
    """Finds the calls that ask. ``number`` answers a 0-d question, ``places`` gives the coordinates of a mask's true
    elements (one int64 tensor per dimension)."""

    def number(self, kind: str, x: torch.Tensor, ask: Callable[[], Any]) -> Any:
        raise NotImplementedError

    def places(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        raise NotImplementedError

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}

        def plain() -> Any:
            inner = _open(func)
            if inner is None:
                return func(*args, **kwargs)
            with self:
                return inner(*args, **kwargs)

        name = getattr(func, "__name__", "")
        if (start := _SIZED.get(name)) is not None:
            return func(*args[:start], *pytree.tree_map(self._size, args[start:]), **kwargs)
        if not args or not isinstance(args[0], torch.Tensor):
            return plain()
        if name in _NUMBERS and args[0].numel() == 1:
            return self.number(_NUMBERS[name], args[0], plain)
        if name == "tolist" and not args[0].is_floating_point() and args[0].numel() <= _LISTED:
            # as a fake tensor's own tolist does, which no mode is told of
            numbers = [self.number("int", one, one.item) for one in args[0].reshape(-1)]
            return _nested(numbers, args[0].shape)
        if name == "nonzero" and args[0].ndim and (found := self.places(args[0] != 0)) is not None:
            tuples = kwargs.get("as_tuple", len(args) > 1 and args[1])
            return found if tuples else torch.stack(found, 1)
        if name == "where" and len(args) == 1 and not kwargs and args[0].ndim:
            found = self.places(args[0] != 0)
            return plain() if found is None else found
        if name == "__getitem__":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(_is_mask(i) for i in index):
                parts: list[Any] = [self.places(i) if _is_mask(i) else (i,) for i in index]
                if all(part is not None for part in parts):
                    return func(args[0], tuple(i for part in parts for i in part))
        if name == "masked_select" and len(args) == 2 and not kwargs:
            shape = torch.broadcast_shapes(*(part.shape for part in args))
            found = self.places(args[1].expand(shape)) if shape else None
            return plain() if found is None else args[0].expand(shape)[found]
        return plain()

    def _size(self, value: Any) -> Any:
        known = isinstance(value, torch.Tensor) and value.ndim == 0 and not value.is_floating_point()
        return self.number("size", value, value.item) if known else value


def _nested(numbers: list[Any], shape: tuple[int, ...]) -> Any:
    """The list that ``tolist`` gives of a tensor of this shape; the number itself where it has no dimension."""
    if not shape:
        return numbers[0]
    each = len(numbers) // shape[0] if shape[0] else 0
    return [_nested(numbers[i * each : (i + 1) * each], shape[1:]) for i in range(shape[0])]


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool and index.ndim > 0


class Asked(_Questions):
    """Eager torch: writes down every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Answers()

    def number(self, kind: str, x: torch.Tensor, ask: Callable[[], Any]) -> Any:
        value = ask()
        self.answers.rows[_place(kind)].append(value)
        return value

    def places(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = torch.nonzero(mask, as_tuple=True)
        self.answers.rows[_place("places")].append(len(found[0]))
        return found


class Given(_Questions):
    """While a program is captured: gives the answer that was written down at this line, and leaves a check of it in
    the program. What was not asked before, and floats, go their usual way; ``whole``: only floats with a fraction."""

    def __init__(self, answers: Answers, whole: bool = False) -> None:
        super().__init__()
        self.answers, self.whole = answers, whole
        self.met: Counter[Key] = Counter()

    def known(self, kind: str) -> Any:
        key = _place(kind)
        rows = self.answers.rows.get(key, [])
        self.met[key] += 1
        return rows[self.met[key] - 1] if self.met[key] <= len(rows) else None

    def number(self, kind: str, x: torch.Tensor, ask: Callable[[], Any]) -> Any:
        value = self.known(kind)
        if not (isinstance(value, bool | int) or (self.whole and _whole(value))):
            return ask()
        x = x.detach().reshape(())
        checks = guard(*_asker()) if kind == "bool" else None
        message = SETTLED if checks is None else checks
        _check((x != 0) == value if isinstance(value, bool) else x == value, message)
        return value

    def places(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        count = self.known("places")
        if count is None:
            return None
        _check(mask.sum() == count, COUNTED)
        return torch.nonzero_static(mask, size=count).unbind(1)


def _check(condition: torch.Tensor, message: str) -> None:
    torch.ops.aten._assert_async.msg(condition, message)


class OfTheLoss(Exception):
    """Eager torch itself raises there: ``error`` is what it raises, and ``refused`` what the capture says of it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
        self.refused: Refused | None = None


def answers(model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> Answers:
    """Run the loss once in eager torch, on copies, with torch's generator put back, and write down what is asked.
    Raises OfTheLoss."""
    tensors, layout = flatten(batch)
    model, tensors = copied((model, tensors))
    batch = layout.build(tensors)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), Asked() as asked:
        try:
            loss(model, batch)
        except Exception as error:
            raise OfTheLoss(error) from None
    return asked.answers


def may_be_eagers(refused: Refused) -> bool:
    """Whether a refusal comes of an exception that a caller of eager torch would catch by its kind. A RuntimeError is
    one of these, and stays a refusal, which is one, too."""
    cause = refused.__cause__
    return cause is not None and any(_kind(link) for link in _links(cause))


def eagers_own(refused: Refused, ask: Callable[[], Answers]) -> None:
    """Raises OfTheLoss where eager torch (``ask()`` runs the loss in it) raises an exception of the kind that the
    capture met."""
    try:
        ask()
    except OfTheLoss as raised:
        assert refused.__cause__ is not None
        if type(raised.error) in {_kind(link) for link in _links(refused.__cause__)}:
            raised.refused = refused
            raise
    except Exception:  # it cannot be copied
        return


def _links(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it: each once, as they may lead round in a circle."""
    told: set[int] = set()
    while error is not None and id(error) not in told:
        told.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _kind(error: BaseException) -> type[BaseException] | None:
    """None of what a refusal is in the place of: torch's own, and RuntimeError itself."""
    kind = type(error)
    own = (
        isinstance(error, Exception) and kind is not RuntimeError and not kind.__module__.startswith("torch")
    )
    return kind if own and not isinstance(error, Refused) else None


def is_check(node: Node) -> bool:
    return node.op == "aten._assert_async.msg" and node.args[1] in (SETTLED, COUNTED)


def _graphs(value: Any) -> Iterator[Graph]:
    if isinstance(value, Graph):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _graphs(item)


def _holds_check(graph: Graph) -> bool:
    return any(is_check(n) or any(_holds_check(g) for g in _graphs(n.args)) for n in graph.nodes)


def unsettled(graph: Graph, foreseen: Callable[[Node], bool] = lambda check: False) -> list[Reason]:
    """A reason for every settled question whose answer depends on more than the batch and on what never changes, or,
    where it is ``foreseen``, on weights or random numbers."""
    written = {output.name for output in graph.outputs if output.kind == "buffer"}
    moving: dict[int, str] = {}  # value -> what moves it
    buffers: dict[int, str] = {}  # value -> the buffer that moves it
    for item in graph.inputs:
        if item.trainable:
            moving[item.id] = f"parameter {item.name}"
        elif item.name in written:
            buffers[item.id] = f"buffer {item.name}, which the step changes"
    bad = []
    for node in graph.nodes:
        ids = [ref.id for ref in node_refs(node)]
        cause = next((moving[i] for i in ids if i in moving), None)
        buffer = next((buffers[i] for i in ids if i in buffers), None)
        if node.draw is not None:
            cause = cause or "a random number"
        if any(_holds_check(inner) for inner in _graphs(node.args)):
            bad.append(Reason("control-flow", "a branch of torch.cond asks for a value", node.where))
        if is_check(node):
            told = cause or (None if buffer is None or foreseen(node) else buffer)
            if told is not None:
                code = "dynamic-shape" if node.args[1] == COUNTED else "control-flow"
                bad.append(Reason(code, f"what is asked here depends on {told}", node.where))
        if cause is not None:
            moving[node.id] = cause
        elif buffer is not None:
            buffers[node.id] = buffer
    return list(dict.fromkeys(bad))


Made = TypeVar("Made")


def settled(
    ask: Callable[[], Answers],
    made: Callable[[Given | None], Made],
    lasting: Callable[[Made], list[Reason]],
    first: Refused,
) -> Made:
    """What is ``made`` with the answers that are given; ``ask()`` asks for them, and ``lasting`` gives reasons why one
    is no answer to build on. Raises OfTheLoss where eager raises, and Refused for what stands in the way then, which is
    another line than that of the ``first`` refusal, most often."""
    try:
        asked = ask()
    except OfTheLoss as raised:
        raised.refused = first
        raise
    except Exception:
        raise first from first.__cause__  # it says why
    done, refused = tried(made, Given(asked))
    if refused is not None and asked.whole():
        done, refused = tried(made, Given(asked, whole=True))
    if refused is not None:
        raise refused from refused.__cause__
    assert done is not None
    bad = lasting(done)
    if bad:
        raise Refused(bad)
    return done


def tried(made: Callable[[Given | None], Made], given: Given | None) -> tuple[Made | None, Refused | None]:
    """Refusals as a value: one that is raised while another is handled would be taken for it."""
    try:
        return made(given), None
    except Refused as refused:
        return None, refused
