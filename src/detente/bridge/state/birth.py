"""The optimizer state that nothing has stepped yet, made where and how the first step wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.lower.precision import x64
from detente.bridge.private import on_host
from detente.bridge.program.program import shape_of
from detente.bridge.roll.stacks import Stacks

Init = Callable[[Mapping[str, Any], Any], dict[str, dict[str, Any]]]


class Births:
    """What makes the whole first state: on a host numbers are written where they are no more than that (AdamW's zeros),
    which takes no compiler; else one small program per layout, instead of one per shape.

    ``init(params, hyper)`` is the rule's own; ``names`` are the parameters that it knows, by torch's names.
    """

    def __init__(self, init: Init, names: frozenset[str]) -> None:
        self.init, self.names = init, names
        self._programs: dict[Any, Any] = {}

    def at(self, hyper: Any) -> Birth:
        """The state that a first step with these numbers begins from."""
        return Birth(self, hyper)

    def program(self, stacks: Stacks) -> Any:
        """``(values by the program's names, hyper) -> state by the program's names``, compiled once per layout."""
        if stacks.rows not in self._programs:

            def made(values: Any, hyper: Any) -> Any:
                return stacks.join(self.by_torch_names(stacks.split(values), hyper), stacked)

            self._programs[stacks.rows] = jax.jit(made)
        return self._programs[stacks.rows]

    def written(self, values: Mapping[str, Any], hyper: Any, stacks: Stacks) -> dict[str, Any] | None:
        """The state by the program's names, where every leaf of it is one number over and over and the device is the
        host; None elsewhere. An accelerator fills its own memory faster than a host could send it."""
        if jax.default_backend() != "cpu":
            return None
        shapes = stacks.split(jax.tree.map(shape_of, dict(values)), row_shape)
        traced, shape = jax.make_jaxpr(self.by_torch_names, return_shape=True)(shapes, hyper)
        made = {id(out): eqn for eqn in traced.jaxpr.eqns for out in eqn.outvars}
        leaves = [_filled(var, made) for var in traced.jaxpr.outvars]
        if any(leaf is None for leaf in leaves):
            return None
        by_name = jax.tree.unflatten(jax.tree.structure(shape), leaves)
        try:
            joined = stacks.join(by_name, _stacked)
        except _Differ:
            return None
        zeros = np.zeros(max((f.bytes for f in jax.tree.leaves(joined)), default=0), np.uint8)
        return jax.tree.map(lambda filled: filled.array(zeros), joined)

    def by_torch_names(self, values: Mapping[str, Any], hyper: Any) -> Any:
        return self.init({n: v for n, v in values.items() if n in self.names}, hyper)


class Birth:
    """State that is not there yet."""

    def __init__(self, births: Births, hyper: Any) -> None:
        self.births, self.hyper = births, hyper
        self._begun: tuple[Any, Future[dict[str, Any] | None]] | None = None

    def begin(self, values: Mapping[str, Any], stacks: Stacks) -> None:
        """Write it in a thread of its own, where it is written at all: the pages of a gigabyte take a quarter of a
        second. An interpreter that ends meanwhile waits."""
        if self._begun is None:
            shapes, coming = jax.tree.map(shape_of, dict(values)), Future[dict[str, Any] | None]()
            self._begun = stacks.rows, coming
            threading.Thread(
                target=self._write, args=(shapes, stacks, coming), name="detente first state"
            ).start()

    def _write(
        self, shapes: Mapping[str, Any], stacks: Stacks, coming: Future[dict[str, Any] | None]
    ) -> None:
        try:
            with x64():
                coming.set_result(jax.block_until_ready(self.births.written(shapes, self.hyper, stacks)))
        except Exception:  # it is made where it is asked for, and says there what is wrong
            coming.set_result(None)

    def make(self, values: dict[str, Any], stacks: Stacks) -> dict[str, dict[str, Any]]:
        """Make it, under the names of the program whose layout is ``stacks``."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == stacks.rows and (made := begun[1].result()) is not None:
            return made
        with x64():
            written = self.births.written(values, self.hyper, stacks)
            return self.births.program(stacks)(values, self.hyper) if written is None else written

    def shapes(self, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Its shapes by torch's names; ``values`` are arrays or shapes by torch's names."""
        with x64():
            return jax.eval_shape(self.births.by_torch_names, values, self.hyper)


def stacked(rows: list[Any]) -> Any:
    """Pytrees of arrays that are all alike, as one with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def row_shape(leaves: Any, k: int) -> Any:
    """The shapes of one row of stacked leaves."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), leaves)


@dataclass(frozen=True)
class _Filled:
    """A leaf that is one number over and over."""

    shape: tuple[int, ...]
    value: np.ndarray[Any, Any]  # of no dimensions, with the leaf's dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.value.dtype.itemsize

    def array(self, zeros: np.ndarray[Any, Any]) -> jax.Array:
        """It on the host, in memory of XLA's own: it will be donated. ``zeros``: bytes enough for the largest leaf."""
        if any(self.value.tobytes()):
            return on_host(np.full(self.shape, self.value))
        return on_host(zeros[: self.bytes].view(self.value.dtype).reshape(self.shape))


class _Differ(Exception):
    """Layers of one stack begin with different numbers."""


def _filled(var: Any, made: Mapping[int, Any]) -> _Filled | None:
    """What a result of a traced function is, where it is one number that no argument has a part in."""
    shape, dtype = tuple(var.aval.shape), var.aval.dtype
    while not hasattr(var, "val"):  # what a program knows by itself has one
        eqn = made.get(id(var))
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "copy"):
            return None
        var = eqn.invars[0]
    return _Filled(shape, np.asarray(var.val, dtype))


def _stacked(rows: list[Any]) -> Any:
    def one(*leaves: _Filled) -> _Filled:
        if len({(leaf.shape, leaf.value.dtype, leaf.value.tobytes()) for leaf in leaves}) > 1:
            raise _Differ
        return _Filled((len(leaves), *leaves[0].shape), leaves[0].value)

    return jax.tree.map(one, *rows)
