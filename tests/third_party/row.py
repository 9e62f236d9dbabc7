"""A row of a table: how a stranger's model is built and what it is fed, as data.

``Row("timm", "timm:create_model", ("vit_tiny",), {"img_size": 32}, [Float(2, 3, 32, 32)])`` is a model. What is built
before the model (a configuration, a part) is a ``New``; what is only named is an ``At``.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class At:
    """``module:name.name``: a value of a package."""

    path: str

    def value(self) -> Any:
        module, _, names = self.path.partition(":")
        found: Any = importlib.import_module(module)
        for name in filter(None, names.split(".")):
            found = getattr(found, name)
        return found


class New:
    """What is called for its result: ``New("package:Config", width=8)``."""

    def __init__(self, path: str, *args: Any, **options: Any) -> None:
        self.path, self.args, self.options = path, args, options

    def __repr__(self) -> str:
        return f"New({self.path!r}, {self.args!r}, {self.options!r})"


@dataclass(frozen=True)
class Drawn:
    """A tensor of every batch. ``kind``: ``normal``, ``uniform`` (0 to 1), ``below`` (integers under ``limit``),
    ``either`` (booleans), ``ones``, ``sorted`` (uniform, rising along the last axis), ``simplex`` (sums to one along
    the last axis), ``unit`` (of length one along it)."""

    kind: str
    shape: Shape
    limit: int = 0


def Float(*shape: int) -> Drawn:  # noqa: N802  (they read as types in the tables)
    return Drawn("normal", shape)


def Uniform(*shape: int) -> Drawn:  # noqa: N802
    return Drawn("uniform", shape)


def Below(limit: int, *shape: int) -> Drawn:  # noqa: N802
    return Drawn("below", shape, limit)


def Either(*shape: int) -> Drawn:  # noqa: N802
    return Drawn("either", shape)


def Ones(*shape: int) -> Drawn:  # noqa: N802
    return Drawn("ones", shape)


def Sorted(*shape: int) -> Drawn:  # noqa: N802
    return Drawn("sorted", shape)


def Unit(*shape: int) -> Drawn:  # noqa: N802
    return Drawn("unit", shape)


@dataclass(frozen=True)
class Row:
    """``args`` and ``options`` build the model, ``inputs`` and ``named`` are what forward takes by place and by name,
    ``loss`` is a key of ``losses.LOSSES``. ``title`` tells rows of one class apart. ``fixed``: the batch is the same
    in every step (a graph)."""

    package: str
    path: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    loss: str = "squares"
    title: str = ""
    fixed: bool = False
    domain: str = ""

    @property
    def name(self) -> str:
        last = self.path.partition(":")[2]
        return f"{last} {self.title}".strip()

    @property
    def signature(self) -> str:
        """Changes when the row does; a record of another row is no record of this one."""
        return hashlib.sha256(repr(replace(self, domain="")).encode()).hexdigest()[:12]


DRAWERS: dict[str, Callable[[Drawn, torch.Generator, torch.dtype], torch.Tensor]] = {
    "normal": lambda d, g, t: torch.randn(d.shape, generator=g, dtype=t),
    "uniform": lambda d, g, t: torch.rand(d.shape, generator=g, dtype=t),
    "below": lambda d, g, t: torch.randint(0, d.limit, d.shape, generator=g),
    "either": lambda d, g, t: torch.rand(d.shape, generator=g) < 0.5,
    "ones": lambda d, g, t: torch.ones(d.shape, dtype=torch.bool),
    "sorted": lambda d, g, t: torch.rand(d.shape, generator=g, dtype=t).sort(-1).values,
    "unit": lambda d, g, t: torch.nn.functional.normalize(torch.randn(d.shape, generator=g, dtype=t), dim=-1),
}


def realised(value: Any, generator: torch.Generator, dtype: torch.dtype) -> Any:
    """``value`` with every ``New``, ``At`` and ``Drawn`` in it made."""
    if isinstance(value, Drawn):
        return DRAWERS[value.kind](value, generator, dtype)
    if isinstance(value, At):
        return value.value()
    if isinstance(value, New):
        args, options = realised((value.args, value.options), generator, dtype)
        return At(value.path).value()(*args, **options)
    if isinstance(value, dict):
        return {key: realised(item, generator, dtype) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(realised(item, generator, dtype) for item in value)
    return value
