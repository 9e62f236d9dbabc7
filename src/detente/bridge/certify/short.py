"""A model cut to two repeats of each block that the roll found, for a certificate that eager torch can hold.

Only layers that live in an ``nn.ModuleList`` or ``nn.Sequential`` can be cut: the container is given fewer of them.
Peeled layers stay.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.copies import copied
from detente.bridge.graph import Graph, without_dead
from detente.bridge.roll.fold import roll
from detente.bridge.roll.stacks import stacked
from detente.bridge.state.meta import fill

KEPT = 2


@dataclass(frozen=True)
class Cut:
    """Copies of module and optimizer with fewer layers. ``what`` says which."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    what: str


def dropped(graph: Graph, model: nn.Module) -> dict[str, list[int]]:
    """Container -> indices of the layers that a cut drops: all but the first two repeats of each stack."""
    _, stacks = stacked(roll(graph))
    drop: dict[str, set[int]] = defaultdict(set)
    keep: dict[str, set[int]] = defaultdict(set)
    for row in stacks.rows:
        paths = [_splits(name) for name in row.members]
        places = [{(head, tail) for head, _, tail in options} for options in paths]
        common = set.intersection(*places) if places else set()
        for head, tail in common:
            indices = [next(i for h, i, t in options if (h, t) == (head, tail)) for options in paths]
            if isinstance(_part(model, head), nn.ModuleList | nn.Sequential) and len(set(indices)) == len(
                indices
            ):
                keep[head] |= set(indices[:KEPT])
                drop[head] |= set(indices[KEPT:])
    return {head: sorted(indices - keep[head]) for head, indices in drop.items() if indices - keep[head]}


def _splits(name: str) -> list[tuple[str, int, str]]:
    """``a.3.b.1.w`` -> every way to see an index in it: ``(a, 3, b.1.w)``, ``(a.3.b, 1, w)``."""
    return [
        (name[: m.start()], int(m.group(1)), name[m.end() :]) for m in re.finditer(r"\.(\d+)(?=\.)", name)
    ] + [("", int(m.group(1)), name[m.end() :]) for m in re.finditer(r"^(\d+)(?=\.)", name)]


def _part(model: nn.Module, path: str) -> Any:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def cut(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    graph: Graph,
    value: Callable[[str], torch.Tensor] | None = None,
) -> Cut | None:
    """Copies with fewer layers, or None where there is nothing to cut. The dropped layers are never copied.
    ``value(name)`` gives a weight where the live module does not hold it; the optimizer then begins anew."""
    graph = without_dead(graph)
    gone = dropped(graph, model)
    if not gone:
        return None
    memo: dict[int, Any] = {}
    lost: set[int] = set()
    for path, indices in gone.items():
        for index in indices:
            layer = model.get_submodule(f"{path}.{index}" if path else str(index))
            memo[id(layer)] = nn.Identity()
            lost |= {id(p) for p in layer.parameters()}
    kept_parts = _outside(model, set(memo))
    lost -= {id(p) for part in kept_parts for p in part.parameters(recurse=False)}
    nothing = nn.Parameter(torch.empty(0))
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) in lost:
                memo[id(p)] = nothing
                if p in optimizer.state:
                    memo[id(optimizer.state[p])] = {}
    new, mine = copied((model, optimizer), memo)
    for path, indices in gone.items():
        container = new.get_submodule(path)
        left = [layer for i, layer in enumerate(container) if i not in set(indices)]
        container._modules.clear()
        container._modules.update({str(i): layer for i, layer in enumerate(left)})
    for group in mine.param_groups:
        group["params"] = [p for p in group["params"] if p is not nothing]
    mine.state.pop(nothing, None)
    if value is not None:
        _fill(model, new, memo, value)
        mine.state.clear()
    words = [f"{path or 'the model'} without layers {_ranges(indices)}" for path, indices in gone.items()]
    return Cut(new, mine, " and ".join(words))


def _outside(model: nn.Module, gone: set[int]) -> list[nn.Module]:
    if id(model) in gone:
        return []
    return [model, *(part for child in model.children() for part in _outside(child, gone))]


def _fill(
    model: nn.Module, new: nn.Module, memo: dict[int, Any], value: Callable[[str], torch.Tensor]
) -> None:
    mine = {id(t) for t in (*new.parameters(), *new.buffers())}
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            copied = memo.get(id(tensor))
            if copied is not None and id(copied) in mine:
                fill(copied, value(name))


def _ranges(indices: list[int]) -> str:
    """>>> _ranges([2, 3, 4, 7])
    '2-4, 7'
    """
    out: list[list[int]] = []
    for i in indices:
        if out and out[-1][-1] == i - 1:
            out[-1].append(i)
        else:
            out.append([i])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in out)
