"""Operators that take tensors of certain dtypes: where they are others, PyTorch raises and its stand-ins do not.

A batch that was made of numpy's float64 is the usual case, and labels of 32 bits. Nothing of the capture says so, and
JAX would compute something.
"""

from __future__ import annotations

from collections.abc import Iterator

from detente.bridge.graph import Graph, Node, Ref, avals
from detente.bridge.lower.driver import every_node
from detente.bridge.refusal import Reason

# Operator -> the places of the arguments that are of one dtype.
_OF_ONE = {
    "aten.linear.default": (0, 1, 2),
    "aten.matmul.default": (0, 1),
    "aten.mm.default": (0, 1),
    "aten.mv.default": (0, 1),
    "aten.addmm.default": (0, 1, 2),
    "aten.addmv.default": (0, 1, 2),
    "aten.conv_transpose1d.default": (0, 1, 2),
    "aten.conv_transpose2d.input": (0, 1, 2),
    "aten.conv_transpose3d.input": (0, 1, 2),
    "aten.index_add.default": (0, 3),
    "aten.index_copy.default": (0, 3),
    "aten.cdist.default": (0, 1),
}
# The same, where a narrow tensor may meet weights of float32.
_OF_ONE_OR_NARROW = {
    "aten.layer_norm.default": (0, 2, 3),
    "aten.group_norm.default": (0, 2, 3),
    "aten.instance_norm.default": (0, 1, 2),
    "aten._native_batch_norm_legit_functional.default": (0, 1, 2),
    "aten._native_batch_norm_legit_no_training.default": (0, 1, 2),
}
# Operator -> the place of its labels, which are classes or, as floats, shares of each class.
_LABELS = {"aten.cross_entropy_loss.default": 1, "aten.nll_loss_nd.default": 1, "aten.nll_loss.default": 1}
_NO_LABELS = frozenset({"int32", "int16", "int8", "bool"})
_NARROW = frozenset({"float16", "bfloat16"})


def mixed(graph: Graph) -> list[Reason]:
    """One reason for each node that PyTorch would raise at, for the dtypes of what it is given."""
    known = avals(graph)
    found = []
    for node in every_node(graph):
        given = [known[argument].dtype for argument in _asked(node) if argument in known]
        label = node.args[_LABELS[node.op]] if node.op in _LABELS else None
        if isinstance(label, Ref) and label in known and known[label].dtype in _NO_LABELS:
            what = f"{_name(node)} of labels of {known[label].dtype}: PyTorch raises at others than int64"
            found.append(Reason("dtype", what, node.where, "convert them: labels.long()"))
        narrow = node.op in _OF_ONE_OR_NARROW and given[:1] and given[0] in _NARROW
        if len({*given}) > 1 and not (narrow and {*given[1:]} <= {given[0], "float32"}):
            what = f"{_name(node)} of {', '.join(given)}: PyTorch raises where these are not of one dtype"
            found.append(Reason("dtype", what, node.where))
    return found


def _asked(node: Node) -> Iterator[Ref]:
    """The arguments that are to be of one dtype."""
    for place in _OF_ONE.get(node.op) or _OF_ONE_OR_NARROW.get(node.op) or ():
        argument = node.args[place] if place < len(node.args) else None
        if isinstance(argument, Ref):
            yield argument


def _name(node: Node) -> str:
    return node.op.split(".")[1]
