"""From what was captured to the graph that is compiled."""

from __future__ import annotations

import torch

from detente.bridge.capture.captured import Captured
from detente.bridge.graph import Graph, without_dead
from detente.bridge.lower.driver import missing
from detente.bridge.lower.mixed import mixed
from detente.bridge.passes.exact import exact_arithmetic
from detente.bridge.passes.masks import recognise_masks, relied_on
from detente.bridge.passes.unbound import unbind_selections
from detente.bridge.refusal import Reason, Refused


def unlowerable(graph: Graph) -> list[Reason]:
    """Every operator that has no lowering, or is given dtypes at which PyTorch raises."""
    return [*missing(graph), *mixed(graph)]


def lowerable(captured: Captured) -> Captured:
    """The same. Raises Refused with what is ``unlowerable``."""
    if reasons := unlowerable(captured.graph):
        raise Refused(reasons)
    return captured


def graph_of(captured: Captured, buffers: bool = True) -> Graph:
    """What is compiled: nothing dead, selections taken apart at once, arithmetic marked whose last digit decides, and
    masks recognised; not from what the loss holds, which may change. ``buffers``: from those of the module, too; not
    where every call may be given others."""
    own = _own(captured) if buffers else {}
    return exact_arithmetic(unbind_selections(recognise_masks(without_dead(captured.graph), own)))


def assumed(captured: Captured) -> dict[str, torch.Tensor]:
    """The buffers whose values went into the program: who writes another value there needs another program."""
    own = _own(captured)
    return {name: own[name] for name in relied_on(without_dead(captured.graph), own)}


def _own(captured: Captured) -> dict[str, torch.Tensor]:
    return {n: t for n, t in captured.weights.tensors.items() if n not in captured.outside}
