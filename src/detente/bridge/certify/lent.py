"""A module and its optimizer to run one eager step on, as if nothing had been run.

Mostly copies. But a copy of a module whose attribute is ``lambda x: self.mlp(x)``, or a loss that names the global
``model``, goes on calling the original: the copy's gradients would be None. That is seen, because the original's
parameters tell who touches them, and the step is then run on the objects themselves. They are given back as they were:
tensors get other memory meanwhile (nobody's alias moves) and their version counters back, tables of modules, Python's
values and generators too, and what the loss holds (a teacher) is lent in both cases.

How it can fail: state that no table of Python's holds, a file or an extension's object, is left as the run left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.generators import Generators
from detente.bridge.copies import copied
from detente.bridge.dense import dense
from detente.bridge.live.guard import plain, release, tensors_of, watch
from detente.bridge.live.sources import Sources
from detente.bridge.live.walk import sources
from detente.bridge.private import set_versions


class CalledOriginal(BaseException):
    """A copy's code touches the original. Raised before anything happens to it, past every ``except Exception``."""


class Touched:
    """Was any of the tensors touched? Stands among their guards for the time of a run, and ends it."""

    __slots__ = ("__weakref__", "any")

    def __init__(self) -> None:
        self.any = False

    def touched(self, tensor: torch.Tensor, name: str) -> None:
        self.any = True
        raise CalledOriginal


class Lender:
    """Lends a module and its optimizer for one run after another; whether to lend copies is found in the first."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any], optimizer: torch.optim.Optimizer) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.itself = False  # the objects themselves, because a copy calls them

    def run(self, step: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> Any:
        """What ``step(module, optimizer)`` returns, which may change both."""
        copies = None if self.itself else self._copies()
        if copies is not None:
            with self._outside(), _touched(tensors_of(self.model)) as touched:
                failed, done = None, None
                try:
                    done = step(*copies)
                except (Exception, CalledOriginal) as error:
                    failed = error
            if not touched.any and failed is not None:
                raise failed
            if not touched.any:
                return done
        self.itself = True
        with self._outside(), _own_memory(tensors_of(self.model)), _tables(self.model), _lent(self.optimizer):
            return step(self.model, self.optimizer)

    def _copies(self) -> tuple[nn.Module, torch.optim.Optimizer] | None:
        """None for what cannot be copied (a lock, a generator)."""
        try:
            return copied((self.model, self.optimizer))
        except Exception:
            return None

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """Python's values, the generators, and the tensors that the loss holds."""
        found = sources(self.model, self.loss)
        generators = Generators(found)
        try:
            with _own_memory(_outer(found)):
                yield
        finally:
            found.put_back()
            generators.moved()


def _outer(found: Sources) -> list[torch.Tensor]:
    """Those whose memory a step may write: a nested tensor's, and a sparse one's, is several."""
    return [t for t in found.tensors.values() if dense(t) and not t.is_meta and t.is_leaf]


@contextmanager
def _touched(tensors: list[torch.Tensor]) -> Iterator[Touched]:
    recorder: Any = Touched()
    watch(tensors, recorder)
    try:
        yield recorder
    finally:
        release(tensors, recorder)


@contextmanager
def _own_memory(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """The same tensors in memory of their own, tensors of one storage in one; gradients are put back, too."""
    distinct = list({id(t): t for t in tensors if not t.is_meta}.values())
    with plain(distinct):
        kept = [(t, t.data, t.grad if t.is_leaf else None, t.requires_grad, t._version) for t in distinct]
        with torch.no_grad():
            copies = copied([data for _, data, *_ in kept])
            for tensor, copy in zip(distinct, copies, strict=True):
                tensor.data = copy
        try:
            yield
        finally:
            for tensor, data, grad, trained, _ in kept:
                tensor.data = data
                if tensor.is_leaf:
                    tensor.grad = grad
                    tensor.requires_grad_(trained)
            versions = tuple(version for *_, version in kept)
            set_versions(distinct, versions)


@contextmanager
def _tables(model: nn.Module) -> Iterator[None]:
    parts = [(part, part.training) for part in model.modules()]
    tables = [(t, dict(t)) for p, _ in parts for t in (p._parameters, p._buffers, p._modules, vars(p))]
    try:
        yield
    finally:
        for table, before in tables:
            if table.keys() != before.keys() or any(table[key] is not held for key, held in before.items()):
                table.clear()
                table.update(before)
        for part, training in parts:
            part.training = training


@contextmanager
def _lent(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Its parameters are the same; everything else that it holds is a copy."""
    kept = dict(vars(optimizer))
    own = [p for group in optimizer.param_groups for p in group["params"]]
    memo: dict[int, Any] = {id(thing): thing for thing in (optimizer, *own)}
    try:
        for key, held in kept.items():
            vars(optimizer)[key] = copied(held, memo)
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(kept)
