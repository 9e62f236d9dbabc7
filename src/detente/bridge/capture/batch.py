"""The batch: any pytree of tensors and plain values, taken apart and put together again.

Tensors become inputs of the program. Everything else (numbers, strings, flags) is *static*: it is part of the
program, and another value is another program.
"""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from detente.bridge.graph import Aval
from detente.bridge.refusal import Reason, Refused

_STATIC = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Layout:
    """How a pytree comes apart: ``spec`` its structure, ``avals`` one ``Aval`` per tensor leaf, ``paths``
    their names, ``static`` the other leaves as ``(position, value)``. Equal layouts run the same program."""

    spec: Any
    avals: tuple[Aval, ...]
    paths: tuple[str, ...]
    static: tuple[tuple[int, Any], ...]

    def build(self, tensors: Sequence[Any]) -> Any:
        """The pytree again, from one value per tensor leaf."""
        leaves: list[Any] = []
        fixed = dict(self.static)
        rest = iter(tensors)
        for position in range(len(self.avals) + len(fixed)):
            leaves.append(fixed[position] if position in fixed else next(rest))
        return pytree.tree_unflatten(leaves, self.spec)

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable, equal for equal layouts (``1``, ``1.0`` and ``True`` are different values here)."""
        static = tuple((i, type(v).__name__, repr(v)) for i, v in self.static)
        return (str(self.spec), self.avals, static)


def aval(tensor: torch.Tensor) -> Aval:
    """Shape and dtype of a tensor, in the neutral graph's words."""
    return Aval(tuple(int(n) for n in tensor.shape), str(tensor.dtype).removeprefix("torch."))


def flatten(tree: Any, name: str = "batch") -> tuple[list[torch.Tensor], Layout]:
    """Tensor leaves in order, and the layout. Raises Refused (``batch``) for leaves that may hide tensors."""
    _register(tree)
    pairs, spec = pytree.tree_flatten_with_path(tree)
    tensors: list[torch.Tensor] = []
    paths: list[str] = []
    static: list[tuple[int, Any]] = []
    bad: list[Reason] = []
    for position, (path, leaf) in enumerate(pairs):
        where = name + pytree.keystr(path)
        if isinstance(leaf, torch.Tensor):
            if leaf.layout != torch.strided:
                bad.append(
                    Reason("batch", f"{where} is a {leaf.layout} tensor; the bridge takes dense tensors")
                )
            tensors.append(leaf)
            paths.append(where)
        elif isinstance(leaf, _STATIC):
            static.append((position, leaf))
        else:
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            hint = "torch.from_numpy makes it a tensor" if kind == "numpy.ndarray" else ""
            bad.append(
                Reason(
                    "batch", f"{where} is a {kind}, which is neither a tensor nor a plain value", None, hint
                )
            )
    if bad:
        raise Refused(bad)
    return tensors, Layout(spec, tuple(aval(t) for t in tensors), tuple(paths), tuple(static))


def _register(tree: Any) -> None:
    """Teach torch's pytree the mappings and dataclasses met in this batch (``BatchEncoding`` is a
    ``UserDict``)."""
    for leaf in pytree.tree_leaves(tree):
        kind = type(leaf)
        if isinstance(leaf, UserDict):
            pytree.register_pytree_node(
                kind, lambda d: (list(d.values()), list(d.keys())), lambda v, k, t=kind: _rebuild(t, v, k)
            )
            _register(list(leaf.values()))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            pytree.register_dataclass(kind)
            _register([getattr(leaf, f.name) for f in dataclasses.fields(leaf)])


def _rebuild(kind: type, values: Sequence[Any], keys: Sequence[Any]) -> Any:
    made: Any = object.__new__(kind)
    made.data = dict(zip(keys, values, strict=True))
    for attribute in ("_encodings", "_n_sequences"):  # transformers' BatchEncoding reads them
        if not hasattr(made, attribute):
            made.__dict__[attribute] = None
    return made
