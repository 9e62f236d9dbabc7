"""Weight rules from small tables: which leaves a kind of module has, and where the modules of a model lie.

A definition names its modules once; what a linear layer, a normalisation or a head projection keeps, and in which
layout, stands here for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from detente.workloads.weights import Path, Reshape, Slice, WeightRule


@dataclass(frozen=True)
class Leaf:
    """A tensor of a torch module and the leaf of the other framework's module that holds it; the rest as in
    WeightRule."""

    torch: str
    other: str
    layout: str = "same"
    piece: Slice | None = None
    reshape: Reshape | None = None
    into: Slice | None = None


Leaves = tuple[Leaf, ...]

LINEAR: Leaves = (Leaf("weight", "kernel", "transposed"), Leaf("bias", "bias"))
LINEAR_WITHOUT_BIAS = LINEAR[:1]
# transformers' Conv1D is a linear layer that keeps (in, out), as Flax does.
CONV1D: Leaves = (Leaf("weight", "kernel"), Leaf("bias", "bias"))
CONVOLUTION: Leaves = (Leaf("weight", "kernel", "convolution"), Leaf("bias", "bias"))
CONVOLUTION_WITHOUT_BIAS = CONVOLUTION[:1]
NORM: Leaves = (Leaf("weight", "scale"), Leaf("bias", "bias"))
SCALE = NORM[:1]
# torch's ``num_batches_tracked`` is a count, not a weight.
BATCH_NORM: Leaves = (*NORM, Leaf("running_mean", "mean"), Leaf("running_var", "var"))
EMBEDDING: Leaves = (Leaf("weight", "embedding"),)


@dataclass(frozen=True)
class At:
    """Leaves of a module that the other framework keeps under another path than torch's, dotted."""

    path: str
    leaves: Leaves


# Torch's dotted name of a module -> its leaves, under the same path in the other framework or At another. "" is the
# model itself.
Table = Mapping[str, Leaves | At]


def to_heads(inputs: int, heads: int, each: int) -> Leaves:
    """A projection (inputs) -> (heads, each): torch keeps the heads side by side, Flax on an axis of their own."""
    weight, bias = LINEAR
    return (
        replace(weight, reshape=Reshape((inputs, heads * each), (inputs, heads, each))),
        replace(bias, reshape=Reshape((heads * each,), (heads, each))),
    )


def from_heads(heads: int, each: int, outputs: int) -> Leaves:
    """A projection (heads, each) -> (outputs)."""
    weight, bias = LINEAR
    return replace(weight, reshape=Reshape((heads * each, outputs), (heads, each, outputs))), bias


def self_attention(
    names: Sequence[str],
    at: str,
    hidden: int,
    heads: int,
    *,
    key_heads: int | None = None,
    bias: bool = True,
    out_bias: bool = True,
) -> dict[str, At]:
    """The projections of ``flax_parts.self_attention.SelfAttention`` under the path ``at``: torch's four ``names``, of
    those to query, key and value and of the one back; the rest as there."""
    each = hidden // heads
    counts = (heads, key_heads or heads, key_heads or heads)
    *inward, outward = names
    table = {
        name: At(f"{at}.{part}", to_heads(hidden, count, each)[: 1 + bias])
        for name, part, count in zip(inward, ("query", "key", "value"), counts, strict=True)
    }
    return table | {outward: At(f"{at}.out", from_heads(heads, each, hidden)[: 1 + out_bias])}


def parameter(name: str) -> Leaves:
    """A tensor of the module's own, under one name on both sides."""
    return (Leaf(name, name),)


def split(leaves: Leaves, names: str | tuple[str, str], start: int, stop: int) -> Leaves:
    """``start`` to ``stop`` of torch's outermost axis (its outputs): torch keeps several projections in one tensor,
    the other framework a module for each. ``names``: torch's tensor of each leaf, or what stands before ``weight`` and
    ``bias`` in it (``in_proj_`` of torch.nn.MultiheadAttention)."""
    wanted = tuple(names + leaf.torch for leaf in leaves) if isinstance(names, str) else names
    piece = Slice(0, start, stop)
    return tuple(replace(leaf, torch=n, piece=piece) for leaf, n in zip(leaves, wanted, strict=True))


def join(leaves: Leaves, start: int, stop: int) -> Leaves:
    """``start`` to ``stop`` of the other framework's last axis (its outputs): several modules of torch's fill one
    leaf."""
    last = {"kernel": 1, "bias": 0}
    return tuple(replace(leaf, into=Slice(last[leaf.other], start, stop)) for leaf in leaves)


def rules_of(table: Table, *, torch: str = "", other: str = "", layer: int | None = None) -> list[WeightRule]:
    """A rule for each leaf of each module. ``torch`` and ``other`` are dotted prefixes of either side, ``layer`` the
    index on a stacked leaf.

    >>> [rule.name for rule in rules_of({"ln": NORM}, torch="h.0")]
    ['h.0.ln.weight', 'h.0.ln.bias']
    >>> rules_of({"ln": NORM}, torch="h.0", other="h", layer=0)[0].path
    ('h', 'ln', 'scale')
    """
    found = []
    for module, entry in table.items():
        path, leaves = (entry.path, entry.leaves) if isinstance(entry, At) else (module, entry)
        for leaf in leaves:
            name = ".".join(filter(None, (torch, module, leaf.torch)))
            at = (*_path(other), *_path(path), leaf.other)
            found.append(WeightRule(name, at, leaf.layout, layer, leaf.piece, leaf.reshape, leaf.into))
    return found


def repeated(
    table: Table, count: int, *, torch: str, other: str, scan: bool, members: tuple[str, ...] = ("",)
) -> list[WeightRule]:
    """The rules of ``count`` layers of one table: ``torch`` and ``other`` are where the list of them lies. ``scan``:
    they are stacked along a leading axis there. Of layers that take turns, ``members`` names each in its group."""
    found = []
    for i in range(count):
        group, turn = divmod(i, len(members))
        place = ".".join(filter(None, (other, "" if scan else str(group), members[turn])))
        found += rules_of(table, torch=f"{torch}.{i}", other=place, layer=group if scan else None)
    return found


def _path(dotted: str) -> Path:
    """Places in a list are numbers."""
    return tuple(int(part) if part.isdecimal() else part for part in dotted.split(".") if part)
