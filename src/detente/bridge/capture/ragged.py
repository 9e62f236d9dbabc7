"""Tensors whose length depends on values, where everything that is read from them has a size that does not.

``x[mask]`` cannot be a value of a program with static shapes, but some of what is done with it can: its length (how
many elements of the mask are true), and row ``k`` of each of ``n`` equal groups, ``x[mask].view(n, -1, ...)[:, k]``,
which is how transformers takes the last <eos> of every example. Of ``unique_consecutive`` the length alone is known
(a check that all counts agree asks for it). Whatever else reads such a tensor is refused at the line that made it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node as FxNode

from detente.bridge.capture.argument import argument
from detente.bridge.graph import Aval, Ref

COUNT = Aval((), "int64")
_END = 2**31 - 1  # a slice that ends here or later ends at the end

Emit = Callable[[str, tuple[Any, ...], Aval], Ref]  # appends a neutral node: operator, arguments, result
Literal = Callable[[Any], Any]  # an fx argument in the neutral graph's words


@dataclass(frozen=True)
class Ragged:
    """A tensor of unknown length, never a value of the program.

    ``made`` is the call that a refusal names, ``count`` the length. ``rows``: it is ``x[mask]``, the true rows of
    ``(x, mask)``, each of shape ``rest``. ``groups``: it is seen as that many equal groups of rows (0: as plain
    rows). ``refused``: said already. ``quiet``: made under no_grad.
    """

    made: FxNode
    count: Ref | None = None
    rows: tuple[Ref, Ref] | None = None
    rest: tuple[int, ...] = ()
    groups: int = 0
    refused: bool = False
    quiet: bool = False


def begun(name: str, node: FxNode, literal: Literal, emit: Emit) -> Any:
    """What ``node``, which makes a tensor of unknown length, is known to be: a ``Ragged``, a tuple with one first,
    or None where nothing is known."""
    if name == "aten.unique_consecutive.default" and argument(node.args, node.kwargs, 3, "dim") is None:
        counted = emit("detente.run_count", (literal(node.args[0]),), COUNT)
        return (Ragged(node, counted), Ragged(node), Ragged(node))
    if name not in ("aten.index.Tensor", "aten.masked_select.default"):
        return None
    x, mask = node.args[0], node.args[1]
    if isinstance(mask, list | tuple):
        mask = mask[0] if mask and all(i is None for i in mask[1:]) else None
    whole, part = _shape(x), _shape(mask)
    if mask is None or whole is None or part is None or mask.meta["val"].dtype != torch.bool:
        return None
    if not part or whole[: len(part)] != part or (name == "aten.masked_select.default" and whole != part):
        return None
    rows = (literal(x), literal(mask))
    counted = emit("aten.sum.default", (rows[1],), COUNT)
    return Ragged(node, counted, rows, whole[len(part) :])


def read(name: str, node: FxNode, held: Ragged, emit: Emit) -> Any:
    """What ``node``, whose first argument is ``held``, gives: a number, a ``Ref``, a ``Ragged`` that is as good as
    known; None where it reads what the program cannot have."""
    if held.count is None:
        return None
    if name == "aten.sym_size.int":
        return _size(node, held, emit)
    if name == "aten.sym_numel.default":
        return _times(held.count, math.prod(held.rest), emit)
    if name in ("aten.alias.default", "aten.clone.default", "aten.contiguous.default"):
        return held
    if name == "aten.slice.Tensor":
        return held if _whole(node, held) else None
    if name in ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"):
        return _grouped(node, held)
    if name == "aten.select.int" and held.groups and held.rows is not None:
        dim, number = node.args[1], node.args[2]
        if dim not in (1, -1 - len(held.rest)) or not isinstance(number, int):
            return None
        value = node.meta["val"]
        out = Aval((held.groups, *held.rest), str(value.dtype).removeprefix("torch."))
        return emit("detente.group_row", (*held.rows, held.groups, number), out)
    return None


def _size(node: FxNode, held: Ragged, emit: Emit) -> Any:
    dim: Any = node.args[1]
    sizes: tuple[Any, ...] = (held.groups, None) if held.groups else (None,)
    size = (*sizes, *held.rest)[dim]
    if size is not None or held.count is None:
        return size
    return emit("python.floordiv", (held.count, held.groups), COUNT) if held.groups else held.count


def _times(count: Ref, size: int, emit: Emit) -> Ref:
    return count if size == 1 else emit("python.mul", (count, size), COUNT)


def _whole(node: FxNode, held: Ragged) -> bool:
    """Whether a slice takes everything."""
    dim, start, end, step = (
        argument(node.args, node.kwargs, i, n) for i, n in enumerate(("dim", "start", "end", "step"), 1)
    )
    sizes: tuple[Any, ...] = (held.groups, None, *held.rest) if held.groups else (None, *held.rest)
    size = sizes[dim or 0]
    if start not in (None, 0) or step not in (None, 1):
        return False
    return end is None or (isinstance(end, int) and end >= (_END if size is None else size))


def _grouped(node: FxNode, held: Ragged) -> Ragged | None:
    """``view(n, -1, *rest)`` of plain rows; the number of rows in a group may also be written out."""
    shape: Any = node.args[1]
    if held.groups or held.rows is None or len(shape) != 2 + len(held.rest):
        return None
    if not isinstance(shape[0], int) or shape[0] < 1 or tuple(shape[2:]) != held.rest:
        return None
    return replace(held, groups=shape[0])


def _shape(node: Any) -> tuple[int, ...] | None:
    """The shape, where it is known."""
    value: Any = node.meta.get("val") if isinstance(node, FxNode) else None
    if not isinstance(value, torch.Tensor) or any(not isinstance(n, int) for n in value.shape):
        return None
    return tuple(value.shape)
