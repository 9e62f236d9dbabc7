"""The module's tensors by name: what is trained, what is frozen, which names are one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from detente.bridge.refusal import Reason, Refused, refuse


@dataclass(frozen=True)
class Weights:
    """``tensors`` maps canonical names (the first in module order) to live parameters and buffers;
    ``aliases`` maps every other name to its canonical one; ``trainable`` are the canonical names that take a
    gradient."""

    tensors: dict[str, torch.Tensor]
    aliases: dict[str, str]
    trainable: frozenset[str]
    parameters: frozenset[str]
    persistent: frozenset[str]

    def canonical(self, name: str) -> str:
        return self.aliases.get(name, name)


def identity(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for two names of the same memory (tied weights), whatever objects they are."""
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return ("object", id(tensor))
    storage = tensor.untyped_storage().data_ptr()
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def whole(module: nn.Module) -> None:
    """Raises Refused where a part has no parameters of a known shape yet (torch's lazy modules), or no code of Python's
    (``torch.jit``)."""
    scripted = [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        raise refuse(
            "export",
            f"{scripted[0] or 'the model'} is a torch.jit module, which has no code of Python's to follow",
            hint="give the module as it was before torch.jit.script or torch.jit.trace",
        )
    named = (*module.named_parameters(), *module.named_buffers())
    lazy = [name for name, tensor in named if is_lazy(tensor)]
    if lazy:
        raise refuse(
            "parameter",
            f"{lazy[0]} has no shape before the first call (a lazy module; of {len(lazy)} in all)",
            hint="call the module once in PyTorch, with a batch, before detente.compile",
        )


def weights(module: nn.Module) -> Weights:
    """All parameters and buffers of ``module``. Raises Refused for sparse, quantised and half-overlapping
    ones."""
    bad: list[Reason] = []
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    named = {**parameters, **dict(module.named_buffers(remove_duplicate=False))}
    for name, tensor in named.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            bad.append(
                Reason(
                    "parameter",
                    f"{name} is a {tensor.layout} {tensor.dtype} tensor; the bridge takes dense ones",
                    hint="keep it dense (to_dense(), dequantize()), or hand what it does over in the batch",
                )
            )
            continue
        key = identity(tensor)
        if key in first:
            known = first[key]
            bad += _each_its_own(known, tensors[known], name, tensor)
            if tensor.requires_grad and not tensors[known].requires_grad:
                # Of two objects of one memory the one that is trained gives its name: by the other's it was frozen.
                del tensors[known]
                first[key], tensors[name] = name, tensor
                aliases = {n: name if c == known else c for n, c in aliases.items()} | {known: name}
            else:
                aliases[name] = known
        else:
            first[key] = name
            tensors[name] = tensor
    bad += _overlaps(tensors)
    if bad:
        raise Refused(bad)
    trainable = frozenset(n for n, t in tensors.items() if n in parameters and t.requires_grad)
    stored = module.state_dict(keep_vars=True)
    return Weights(
        tensors, aliases, trainable, frozenset(n for n in tensors if n in parameters), frozenset(stored)
    )


def _each_its_own(known: str, held: torch.Tensor, name: str, tensor: torch.Tensor) -> list[Reason]:
    """Two objects of one memory that are both trained: PyTorch gives each a gradient and a momentum of its own, and
    updates the memory for both."""
    if tensor is held or not (tensor.requires_grad and held.requires_grad):
        return []
    return [
        Reason(
            "parameter",
            f"{known} and {name} are two parameters of one memory, which PyTorch updates for each of them by itself",
            hint="make them one object (self.b = self.a, without another nn.Parameter around it), or give the one that "
            "forward does not use requires_grad=False",
        )
    ]


def _overlaps(tensors: dict[str, torch.Tensor]) -> list[Reason]:
    """Two different views of one memory cannot be two values of a functional program."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0 or tensor.device.type == "meta":
            continue
        start = tensor.storage_offset() * tensor.element_size()
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        spans.setdefault(tensor.untyped_storage().data_ptr(), []).append(
            (start, start + reach * tensor.element_size(), name)
        )
    bad = []
    for rows in spans.values():
        rows.sort()
        for (_, end, a), (start, _, b) in pairwise(rows):
            if start < end:
                bad.append(
                    Reason("parameter", f"{a} and {b} overlap in memory without being the same tensor")
                )
    return bad
