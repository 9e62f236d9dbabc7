"""Settled questions, asked before a step runs: is this the program for this batch, and for the buffers as they are?

The checks that ``settled.py`` leaves in a program say so after the step, when nothing can be done. What a check reads
is often little (labels, a mask, a flag that a buffer holds), so it is worked out here with torch, on the host, from
the batch that is about to go in. It costs those few operators, and where a buffer is read that the step writes, waiting
for the step before. What cannot be worked out here (an operator that is not ATen's) is left to the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from detente.bridge.arrays import to_torch
from detente.bridge.capture.computed import compute
from detente.bridge.graph import Graph, Node, Ref, Where, computing, node_refs
from detente.bridge.private import outside_of_modes


@dataclass(frozen=True)
class Ahead:
    """``checks`` are nodes of the program that hold while its answers are the batch's, ``nodes`` all that they read,
    in order. ``leaves`` are the batch's inputs in its order, the ones that nothing reads too."""

    graph: Graph
    nodes: tuple[Node, ...]
    checks: tuple[Node, ...]

    @staticmethod
    def of(graph: Graph, is_check: Callable[[Node], bool]) -> Ahead:
        checks = tuple(node for node in graph.nodes if is_check(node))
        nodes = computing(graph, (ref.id for check in checks for ref in node_refs(check)))
        return Ahead(graph, tuple(node for node in nodes if node not in checks), checks)

    @cached_property
    def reads(self) -> frozenset[int]:
        return frozenset(ref.id for node in (*self.nodes, *self.checks) for ref in node_refs(node))

    def answers(self, batch: Sequence[Any], held: Callable[[str], torch.Tensor]) -> dict[int, bool]:
        """Check by id: whether it holds. A check that cannot be worked out is not there. ``batch`` are its leaves,
        torch's or arrays, ``held(name)`` is a parameter or buffer."""
        values: dict[int, Any] = {}
        leaves = iter(batch)
        for item in self.graph.inputs:
            leaf = next(leaves) if item.kind == "batch" else None
            if item.id not in self.reads:
                continue
            if item.kind == "batch":
                values[item.id] = leaf if isinstance(leaf, torch.Tensor) else to_torch(leaf)
            elif item.kind == "constant":
                values[item.id] = to_torch(self.graph.constants[item.name])
            else:
                values[item.id] = held(item.name)
        found: dict[int, bool] = {}
        compute(self.nodes, values)
        with outside_of_modes():
            for check in self.checks:
                said = check.args[0]
                if isinstance(said, Ref) and said.id in values:
                    value = values[said.id]
                    found[check.id] = bool(value if said.index is None else value[said.index])
        return found

    def other(self, batch: Sequence[Any], held: Callable[[str], torch.Tensor]) -> Where | None:
        """The line of the first question that has another answer now; None where this is the program."""
        answers = self.answers(batch, held)
        return next((check.where for check in self.checks if answers.get(check.id) is False), None)
