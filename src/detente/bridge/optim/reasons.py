"""What a trace of an optimizer says in more than one place, with what to do instead."""

from __future__ import annotations

from detente.bridge.graph import Where
from detente.bridge.refusal import Refused, refuse

BRANCHES = "write its if on tensors with torch.where and one state for both, or take another optimizer"
NO_GRAPH = (
    "an optimizer that differentiates the gradients (backward(create_graph=True)) is not taken: take one of first "
    "order, or differentiate detente.functional(model) with JAX"
)
NO_CLOSURE = "take the form of it that needs no closure, where it has one, or another optimizer"
FAILED = "take that line out of step() or write it with tensors alone, or take another optimizer"


def no_graph(name: str, where: Where) -> Refused:
    return refuse(
        "optimizer",
        f"{name}.step() differentiates the gradients for an estimate of the Hessian, and the gradients of a compiled "
        "step have no graph",
        where,
        hint=NO_GRAPH,
    )
