"""Layers that JAX keeps in one stack, as ``nnx.scan`` and ``nn.scan`` want them: every tensor of the layer once, with
the layers on its first axis. Here they are taken apart, mapped like layers of their own, and put together again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from detente.workloads.own.mapping.tensors import Tensor
from detente.workloads.weights import WeightRule


@dataclass(frozen=True)
class Unstacked:
    """JAX's tensors with a name for each layer, ``layers.3.norm.scale``; ``at`` has the leaf and the layer of each."""

    tensors: tuple[Tensor, ...]
    at: Mapping[str, tuple[str, int]]

    def rules(self, found: Sequence[WeightRule]) -> tuple[WeightRule, ...]:
        """The rules of the leaves as they are."""
        return tuple(map(self._rule, found))

    def _rule(self, rule: WeightRule) -> WeightRule:
        name = ".".join(map(str, rule.path))
        if name not in self.at:
            return rule
        leaf, layer = self.at[name]
        return replace(rule, path=tuple(leaf.split(".")), layer=layer)


def unstacked(torch: Sequence[Tensor], jax: Sequence[Tensor]) -> Unstacked | None:
    """JAX's tensors taken apart; None where nothing is stacked. A stack is a module all of whose tensors have as many
    entries on their first axis as torch has layers in a list; the outermost such module."""
    lengths = _lengths(torch)
    below: dict[tuple[str, ...], list[Tensor]] = {}
    for tensor in jax:
        parts = tuple(tensor.name.split("."))
        for end in range(1, len(parts)):
            below.setdefault(parts[:end], []).append(tensor)
    stacks: dict[tuple[str, ...], int] = {}
    for module in sorted(below, key=len):
        firsts = {t.shape[0] if t.shape else 0 for t in below[module]}
        inside = any(module[: len(outer)] == outer for outer in stacks)
        if not inside and len(below[module]) > 1 and len(firsts) == 1 and (first := firsts.pop()) in lengths:
            stacks[module] = first
    if not stacks:
        return None
    found: list[Tensor] = []
    at: dict[str, tuple[str, int]] = {}
    for tensor in jax:
        parts = tuple(tensor.name.split("."))
        stack = next((s for s in stacks if parts[: len(s)] == s and len(parts) > len(s)), None)
        if stack is None:
            found.append(tensor)
            continue
        for layer in range(stacks[stack]):
            name = ".".join([*stack, str(layer), *parts[len(stack) :]])
            found.append(replace(tensor, name=name, shape=tensor.shape[1:]))
            at[name] = tensor.name, layer
    return Unstacked(tuple(found), at)


def _lengths(tensors: Sequence[Tensor]) -> set[int]:
    """How many members the lists of modules have, ``h.0`` to ``h.11``; of one member none is a list."""
    members: dict[tuple[str, ...], set[int]] = {}
    for tensor in tensors:
        parts = tuple(tensor.name.split("."))
        for k, part in enumerate(parts):
            if part.isdigit():
                members.setdefault(parts[:k], set()).add(int(part))
    return {len(found) for found in members.values() if len(found) > 1 and found == set(range(len(found)))}
