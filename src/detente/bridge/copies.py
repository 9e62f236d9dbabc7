"""Copies of modules, optimizers and batches to run something on without touching the user's."""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch

from detente.bridge.private import neg_view, pytree


def copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """``copy.deepcopy``, also of tensors that were computed with a gradient: torch refuses those, and the older
    ``weight_norm`` and ``spectral_norm`` leave one in every module that has run. Such a tensor is copied as data.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 2)
    >>> layer.last = layer(torch.ones(1, 2))
    >>> copied(layer).last.requires_grad
    False
    """
    memo = {} if memo is None else memo
    for part in value if isinstance(value, tuple | list) else (value,):
        if isinstance(part, torch.optim.Optimizer):
            _optimizer(part, memo)
    for tensor in _tensors(value):
        if id(tensor) in memo:
            continue
        if tensor.layout == torch.strided and (tensor.is_conj() or tensor.is_neg()):
            memo[id(tensor)] = _noted(tensor)
        elif not tensor.is_leaf:
            memo[id(tensor)] = tensor.detach().clone()
    return copy.deepcopy(value, memo)


def _noted(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a conjugate or a negative that torch has only noted, which notes it, too: torch's copies compute it."""
    conj, neg, held = tensor.is_conj(), tensor.is_neg(), tensor.detach()
    held = neg_view(held) if neg else held
    made = (held.conj() if conj else held).clone()
    made = made.conj() if conj else made
    return (neg_view(made) if neg else made).requires_grad_(tensor.requires_grad and tensor.is_leaf)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a copy of ``value`` would meet in attributes and containers, of objects that are no modules
    too (a policy's distribution keeps the noise that it drew)."""
    waiting: list[Any] = [value]
    seen: dict[int, Any] = {}  # and kept: another object would have the id of one that is gone
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _WHOLE):
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif (held := getattr(one, "__dict__", None)) is not None:
            waiting += pytree.tree_leaves(one)  # a container that torch knows how to open
            waiting.append(held)


# what a copy takes as it is, or has nothing inside
_WHOLE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    str,
    bytes,
    int,
    float,
    complex,
)


def _optimizer(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> None:
    """Into ``memo``: torch's own way of copying one drops every attribute but groups, state and defaults, which the
    optimizers of other packages read in their step. Parameters are copied with whatever comes later."""
    double, own = bare(optimizer)
    memo[id(optimizer)] = double
    for inner in own.values():  # one that it wraps
        if isinstance(inner, torch.optim.Optimizer) and id(inner) not in memo:
            _optimizer(inner, memo)
    double.__dict__.update(copied(own, memo))


def bare(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
    """A double of the same class that has nothing but empty hooks, and what the optimizer itself holds besides: not the
    ``step`` that a learning rate scheduler has put on it, which is bound to the original."""
    double = object.__new__(type(optimizer))
    double._optimizer_step_pre_hooks = OrderedDict()
    double._optimizer_step_post_hooks = OrderedDict()
    left = {"step", *vars(double)}
    return double, {name: held for name, held in vars(optimizer).items() if name not in left}
