"""Attention masks that are known to be causal or all true: ``is_causal=True``, or no mask.

``transformers`` builds an explicit mask (packed-sequence detection, then a bool tensor of L x L), so the
causal fast path is lost in every traced program; here it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from detente.bridge.graph import Graph, Node, Ref, node_refs, without_dead
from detente.bridge.passes.known import known

ATTENTION = "aten.scaled_dot_product_attention.default"
_ORDER = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def recognise_masks(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> Graph:
    """The graph with every recognisable mask replaced; what only the masks needed is gone."""
    if not any(node.op == ATTENTION for node in graph.nodes):
        return graph
    values = known(graph, tensors)
    nodes = tuple(_rewritten(node, values) if node.op == ATTENTION else node for node in graph.nodes)
    return without_dead(replace(graph, nodes=nodes))


def relied_on(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Names of the ``tensors`` that a mask was recognised from: with other values it would be another program."""
    nodes = {node.id: node for node in graph.nodes}
    buffers = {item.id: item.name for item in graph.inputs if item.kind == "buffer"}
    given = ((node, _mask_of(node)) for node in graph.nodes)
    masks = [(node, _sources(mask.id, nodes, buffers)) for node, mask in given if mask is not None]
    if not any(names for _, names in masks):
        return frozenset()  # and nothing needs to be worked out
    values = known(graph, tensors)
    return frozenset().union(*(names for node, names in masks if _kind(node, values) is not None))


def _sources(at: int, nodes: Mapping[int, Node], buffers: Mapping[int, str]) -> frozenset[str]:
    """Names of the buffers that a value is computed from."""
    waiting, seen = [at], set[int]()
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            waiting += [ref.id for ref in node_refs(nodes[at])] if at in nodes else []
    return frozenset(buffers[at] for at in seen if at in buffers)


def _mask_of(node: Node) -> Ref | None:
    """The mask that an attention is given; None of any other node."""
    if node.op != ATTENTION:
        return None
    given = dict(zip(_ORDER, node.args, strict=False)) | dict(node.kwargs)
    mask = given.get("attn_mask")
    return mask if isinstance(mask, Ref) and not given.get("is_causal") else None


def _kind(node: Node, values: Mapping[int, Any]) -> str | None:
    """What is known of an attention's mask."""
    mask = _mask_of(node)
    if mask is None or mask.id not in values:
        return None
    return classify(values[mask.id] if mask.index is None else values[mask.id][mask.index])


def _rewritten(node: Node, values: Mapping[int, Any]) -> Node:
    kind = _kind(node, values)
    if kind is None:
        return node
    given = dict(zip(_ORDER, node.args, strict=False)) | dict(node.kwargs)
    given["attn_mask"] = None
    if kind == "causal":
        given["is_causal"] = True
    positional = ("query", "key", "value")
    kwargs = tuple((k, v) for k, v in given.items() if k not in positional)
    return replace(node, args=tuple(given[k] for k in positional), kwargs=kwargs)


def classify(mask: torch.Tensor) -> str | None:
    """``"causal"`` (row i sees columns up to i), ``"all"`` (everything is seen), or None.

    A float mask counts where it is 0 (seen) or the dtype's lowest value or -inf (hidden): a score that is
    added to the lowest value cannot lift it, so the softmax gives exactly 0 there, as long as a row sees
    anything at all.
    """
    if mask.ndim < 2:
        return None
    if mask.dtype == torch.bool:
        seen = mask
    elif mask.is_floating_point():
        lowest = torch.finfo(mask.dtype).min
        seen = mask == 0
        if not bool((seen | (mask <= lowest)).all()):
            return None
    else:
        return None
    if bool(seen.all()):
        return "all"
    if mask.shape[-1] < 2:
        return None
    triangle = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return "causal" if bool((seen == triangle).all()) else None
