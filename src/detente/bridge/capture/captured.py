"""A captured step, and whether two of them are one."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from detente.bridge.capture import batch as batches
from detente.bridge.capture.generators import Drawn
from detente.bridge.capture.kept import Kept
from detente.bridge.capture.lasting import Lasting
from detente.bridge.capture.weights import Weights
from detente.bridge.graph import Graph, Where
from detente.bridge.live.ran import Names
from detente.bridge.live.writes import Write


@dataclass(frozen=True)
class Captured:
    """A captured step. ``graph`` maps parameters, buffers, constants and batch leaves to loss, aux leaves
    and mutated buffers; ``batch`` and ``aux`` say how the pytrees come apart; ``weights`` names the live
    tensors; ``draws`` is how many random calls the program makes in eager order, dead ones included. ``ran`` is the
    code that ran in the capture, and ``writes`` what it wrote to Python's values, as a step of eager would have, too.
    ``outside`` are tensors that the loss holds (a teacher's, class weights): inputs like the module's buffers.
    ``lasting`` are results beside the loss that are the module's own tensors. ``asked`` is what the user's code asked
    for outside of Python (a file), and ``again`` what it asks for whenever it runs. ``codes`` are those of the user's
    functions that ran. ``kept`` are tensors that forward leaves in Python, for who looks at them behind the step, and
    ``unkept`` the names of those places that no step fills. ``drawn`` is how far forward moves generators of Python's
    and numpy's whose numbers decide nothing. ``made``: what forward makes once was put into its place. ``into_batch``:
    names of what the loss puts into its batch's containers. ``begins``: the line that asks where in memory the batch's
    tensors begin, which is at 0 for this program; None where nobody asks."""

    graph: Graph
    batch: batches.Layout
    aux: batches.Layout | None
    weights: Weights
    draws: int
    ran: Names = Names()
    writes: tuple[Write, ...] = ()
    outside: tuple[str, ...] = ()
    lasting: tuple[Lasting, ...] = ()
    asked: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    codes: frozenset[CodeType] = field(default=frozenset(), compare=False)
    kept: tuple[Kept, ...] = ()
    unkept: tuple[str, ...] = ()
    drawn: Drawn = ()
    made: bool = False
    into_batch: tuple[str, ...] = ()
    begins: Where | None = None


def alike(one: Captured, other: Captured, *, values: bool = False) -> bool:
    """Whether two captures are one program, give back the same plain values beside the loss, and read the same
    constants; ``values``: that hold the same."""
    if one.graph != other.graph or _given_back(one) != _given_back(other):
        return False
    held, others = one.graph.constants, other.graph.constants
    if held.keys() != others.keys():
        return False
    return not values or all(a.tobytes() == others[n].tobytes() for n, a in held.items())


def one_program(one: Captured, other: Captured) -> bool:
    """Whether either may run for the other: they move generators and write to Python's values alike, too."""

    def beside(captured: Captured) -> Any:
        written = [(write.name, write.value, write.by) for write in captured.writes]
        return captured.draws, captured.drawn, captured.begins, captured.unkept, captured.outside, written

    return alike(one, other, values=True) and beside(one) == beside(other)


def _given_back(captured: Captured) -> Any:
    kept = [(one.name, one.said) for one in captured.kept]
    return captured.lasting, None if captured.aux is None else captured.aux.key, kept
