"""From what was captured to the graph that is compiled."""

from __future__ import annotations

from detente.bridge.capture.export import Captured
from detente.bridge.graph import Graph, without_dead
from detente.bridge.lower.driver import missing
from detente.bridge.passes.masks import recognise_masks
from detente.bridge.passes.unbound import unbind_selections
from detente.bridge.refusal import Refused


def lowerable(captured: Captured) -> Captured:
    """The same. Raises Refused with every operator that has no lowering."""
    reasons = missing(captured.graph)
    if reasons:
        raise Refused(reasons)
    return captured


def graph_of(captured: Captured) -> Graph:
    """What is compiled: nothing dead, selections taken apart at once, and masks recognised; not from what the loss
    holds, which may change."""
    own = {n: t for n, t in captured.weights.tensors.items() if n not in captured.outside}
    return unbind_selections(recognise_masks(without_dead(captured.graph), own))
