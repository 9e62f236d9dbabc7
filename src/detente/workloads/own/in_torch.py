"""A user's model in PyTorch, behind the same functions as every other definition."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from detente.records.fault import UsageFault
from detente.workloads.own.dropout import dropping, switch_off
from detente.workloads.own.form import Form, draws
from detente.workloads.own.from_file import call_function
from detente.workloads.own.loaded import Loaded, check
from detente.workloads.own.mapping.tensors import Tensor
from detente.workloads.own.raised import Raised, backward
from detente.workloads.own.side import Side
from detente.workloads.own.size import OwnSize
from detente.workloads.workload import Size

__all__ = ["backward", "batch", "build", "build_raised", "dropping", "left_out", "loss", "optimizer", "side"]

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Carried:
    """What a built module carries along, because ``loss`` and ``optimizer`` are given the module alone."""

    loss: Callable[[torch.nn.Module, Any], Any]
    form: Form
    optimizer: torch.optim.Optimizer | None
    trained: tuple[tuple[str, ...], ...]  # names of the optimizer's parameters, group by group
    left_out: str
    first: torch.Tensor  # a parameter, whose dtype is the model's


def build(size: Size) -> torch.nn.Module:
    """The user's module in training mode. Runs the user's function."""
    assert isinstance(size, OwnSize)
    loaded = _load(size)
    form = Form.of(next(_draws(loaded, size)))
    first = next(loaded.module.parameters())
    carried = Carried(loaded.loss, form, loaded.optimizer, _trained(loaded), loaded.left_out, first)
    if not size.drops_out:
        switch_off(loaded.module)
    # Past Module.__setattr__: it is no part of the module's state.
    object.__setattr__(loaded.module, "detente_own", carried)
    return loaded.module.train()


def build_raised(size: Size) -> torch.nn.Module:
    """As ``build``, for float64: what the module makes for itself and no weights are loaded into (a table of rotary
    frequencies) is not rounded."""
    with Raised():
        return build(size)


def _trained(loaded: Loaded) -> tuple[tuple[str, ...], ...]:
    names = {id(p): n for n, p in loaded.module.named_parameters()}
    groups = loaded.optimizer.param_groups if loaded.optimizer is not None else []
    strange = sum(id(p) not in names for group in groups for p in group["params"])
    if strange:
        raise UsageFault(
            f"the optimizer has {strange} parameters that are not the module's",
            "make it from module.parameters(), after the module is whole",
        )
    return tuple(tuple(names[id(p)] for p in group["params"]) for group in groups)


def loss(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """The user's loss of the batch in the user's form. Tensors that it returns beside the loss, by name or alone
    (``aux``), are the outputs. Raises UsageFault when the loss is not one number."""
    carried: Carried = module.detente_own  # type: ignore[assignment]
    given = carried.form.put_together(batch)
    if carried.first.dtype is torch.float64:
        with Raised():
            found = carried.loss(module, given)
    else:
        found = carried.loss(module, given)
    value: Any
    aux: Any
    value, aux = found if isinstance(found, tuple | list) and len(found) == 2 else (found, {})
    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        shown = f"a {type(value).__name__}"
        if isinstance(value, torch.Tensor):
            shown = f"a tensor of shape {tuple(value.shape)}"
        raise UsageFault(
            f"the loss returned {shown}, not one number",
            "return a 0-d tensor, or (0-d tensor, {name: tensor})",
        )
    named = aux if isinstance(aux, Mapping) else {"aux": aux}
    return value, {str(n): t for n, t in named.items() if isinstance(t, torch.Tensor)}


def optimizer(module: torch.nn.Module) -> torch.optim.Optimizer | None:
    """The optimizer that the user's function made, if it did, over the parameters that the module has now: moving a
    module to another kind of device replaces them."""
    carried: Carried = module.detente_own  # type: ignore[assignment]
    if carried.optimizer is not None:
        named = dict(module.named_parameters())
        for group, names in zip(carried.optimizer.param_groups, carried.trained, strict=True):
            group["params"] = [named[n] for n in names]
    return carried.optimizer


def left_out(module: torch.nn.Module) -> str:
    """What of the user's recipe is not run, for the reader."""
    carried: Carried = module.detente_own  # type: ignore[assignment]
    return carried.left_out


def side(module: torch.nn.Module) -> Side:
    """What the JAX side of a pair must know: the tensors with their owners, and the optimizer."""
    carried: Carried = module.detente_own  # type: ignore[assignment]
    owners = dict(module.named_modules())
    kept = set(module.state_dict())
    named = [(n, p, p.requires_grad) for n, p in module.named_parameters()]
    named += [(n, b, False) for n, b in module.named_buffers() if n in kept and b.is_floating_point()]
    made = carried.optimizer
    return Side(
        tuple(
            Tensor(n, tuple(t.shape), type(owners[n.rpartition(".")[0]]).__name__, trained)
            for n, t, trained in named
        ),
        type(made).__name__ if made is not None else "",
    )


def batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The next batch of the user's stream, drawn with every global generator seeded from ``rng``."""
    seed = int(rng.integers(2**31))
    _seed(seed)
    stream = _stream(size)
    # Again: to open the stream may have built a model, and with it used up random numbers.
    _seed(seed)
    found = next(stream)
    return Form.of(found).take_apart(found)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # a file may draw from the legacy generator
    torch.manual_seed(seed)


_STREAMS: dict[str, Iterator[Any]] = {}


def _stream(size: Size) -> Iterator[Any]:
    """The one stream of batches of a target in this process: a DataLoader goes on where it was."""
    key = str(size)
    if key not in _STREAMS:
        _STREAMS[key] = _draws(_load(size), size)
    return _STREAMS[key]


def _draws(loaded: Loaded, size: Size) -> Iterator[Any]:
    return draws(loaded.batch, lambda: _load(size).batch)


def _load(size: Size) -> Loaded:
    assert isinstance(size, OwnSize)
    target = size.functions["torch"]
    if target.startswith("hf:"):
        # transformers takes seconds to import, and a model from a file may do without it.
        from detente.workloads.own.from_hf import load_hf

        return load_hf(size)
    return check(call_function(target, size.changed("torch")), target)
