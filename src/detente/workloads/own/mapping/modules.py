"""The modules of either side: tensors that belong together are matched together, so that no bias leaves its weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from detente.workloads.own.mapping.names import ModuleName, module_name, read, unnumbered_firsts
from detente.workloads.own.mapping.tensors import Part
from detente.workloads.weights import Slice

# Torch modules that keep query, key and value side by side, in this order. A user's own ``qkv`` may as well take turns
# by heads (transformers' GPTBigCode does so in a linear layer named c_attn), which no name and no shape shows: those a
# table divides.
_FUSED = {("MultiheadAttention", "in_proj"): 0, ("Conv1D", "c_attn"): 1}
_PARTS = ("q_proj", "k_proj", "v_proj")
# The norms of a block in Llama, Mistral, Qwen2, GPT-NeoX and their like, in front of attention and in front of the
# feed-forward part. Where a block has others besides (Gemma 2), the names mean what they say.
_TWO_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}


@dataclass(frozen=True, eq=False)
class Module:
    """A module with its tensors by role. ``rest``: only what was left when the others of the module had been mapped."""

    path: tuple[str, ...]
    name: ModuleName
    parts: Mapping[str, Part]
    rest: bool = False


def modules(parts: Iterable[Part]) -> list[Module]:
    """The modules that own ``parts``."""
    parts = list(parts)
    firsts = unnumbered_firsts([part.name for part in parts], [part.tensor.owner for part in parts])
    groups: dict[tuple[str, ...], list[tuple[str, Part]]] = {}
    for part in parts:
        role, path = read(part.name, part.tensor.trained, firsts)
        groups.setdefault(path, []).append((role, part))
    norms: dict[tuple[str, ...], set[str]] = {}
    for path in groups:
        if path and "norm" in path[-1].lower():
            norms.setdefault(path[:-1], set()).add(path[-1])
    found = []
    for path, members in groups.items():
        roles = [role for role, _ in members]
        found += single((path, *m) for m in members if roles.count(m[0]) > 1)
        alone = {role: part for role, part in members if roles.count(role) == 1}
        if alone:
            two = norms.get(path[:-1]) == _TWO_NORMS.keys()
            said = (*path[:-1], _TWO_NORMS.get(path[-1], path[-1])) if two else path
            found.append(Module(path, module_name(said), alone))
    return found


def single(members: Iterable[tuple[tuple[str, ...], str, Part]], rest: bool = False) -> list[Module]:
    """Each tensor as a module of its own. Where a module has two of a role, what each is called is all there is."""
    found = []
    for path, role, part in members:
        at = path if rest else tuple(part.name.split("."))
        found.append(Module(at, module_name(at), {role: part}, rest))
    return found


def divided(torch: Sequence[Module], jax: Sequence[Module]) -> list[Module]:
    """Torch's modules with query, key and value apart, unless the other side has them in one as well."""
    if any("qkv" in module.name.words for module in jax):
        return list(torch)
    found = {module.path: module for module in torch if not _is_fused(module)}
    for module in filter(_is_fused, torch):
        for i, last in enumerate(_PARTS):
            path = (*module.path[:-1], last)
            there = found.get(path)
            pieces = {role: _third(part, i) for role, part in module.parts.items()}
            found[path] = Module(path, module_name(path), {**(there.parts if there else {}), **pieces})
    return list(found.values())


def _is_fused(module: Module) -> bool:
    axes = [_axis(module, part) for part in module.parts.values()]
    return all(
        axis is not None
        and part.shape[axis] % 3 == 0
        and (len(part.shape) == 1 or _is_triple(part.shape, axis))
        for axis, part in zip(axes, module.parts.values(), strict=True)
    )


def _is_triple(shape: tuple[int, ...], axis: int) -> bool:
    return len(shape) == 2 and shape[axis] == 3 * shape[1 - axis]


def _axis(module: Module, part: Part) -> int | None:
    axis = _FUSED.get((part.tensor.owner, module.path[-1] if module.path else ""))
    return axis if axis is None or len(part.shape) > 1 else 0


def _third(part: Part, i: int) -> Part:
    axis = 1 if part.tensor.owner == "Conv1D" and len(part.shape) > 1 else 0
    return cut(part, axis, i * part.shape[axis] // 3, (i + 1) * part.shape[axis] // 3)


def cut(part: Part, axis: int, start: int, stop: int) -> Part:
    """``start`` to ``stop`` of a whole tensor, along ``axis``."""
    shape = (*part.shape[:axis], stop - start, *part.shape[axis + 1 :])
    return Part(part.tensor, part.name, shape, Slice(axis, start, stop))
