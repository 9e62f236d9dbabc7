"""What a loop reads and writes piece by piece, as whole tensors.

A loop over time reads ``x[:, 0]``, ``x[:, 1]``, ... and what it made is put together by ``torch.stack`` or
``torch.cat``. As pieces these are as many slices and operands as there are steps, in the program and in its derivative;
as a whole they are one tensor whose axes change places. Pieces that stand in the order of the loop, or in its reverse,
are found; others stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from detente.bridge.graph import Aval, Graph, Node, Ref, avals, without_dead
from detente.bridge.passes.unbound import LEAST, SELECT, UNBIND, select_few
from detente.bridge.roll.fold import ROLL

_Row = tuple[Ref, int, bool]  # of which result, which row of it, whether with an axis of its own
STACK, CAT, UNSQUEEZE = "aten.stack.default", "aten.cat.default", "aten.unsqueeze.default"


def at_once(graph: Graph) -> Graph:
    """``graph`` (from ``fold.roll``) with what its loops read and write as wholes, also inside the loops."""
    if not any(n.op == ROLL for n in graph.nodes):
        return graph
    writer = _Writer(
        made={n.id: n for n in graph.nodes},
        avals=avals(graph),
        fresh=1 + max(v.id for v in (*graph.inputs, *graph.nodes)),
    )
    for node in graph.nodes:
        if node.op == ROLL:
            writer.loop(node)
        elif node.op in (STACK, CAT):
            writer.together(node)
        else:
            writer.nodes.append(node)
    return select_few(without_dead(replace(graph, nodes=tuple(writer.nodes))))


@dataclass
class _Writer:
    made: Mapping[int, Node]
    avals: Mapping[Ref, Aval]
    fresh: int
    nodes: list[Node] = field(default_factory=list)

    def add(self, beside: Node, op: str, args: tuple[Any, ...], out: Aval) -> Ref:
        """A new node; ``beside`` says where in the user's code, and under which marks."""
        self.fresh += 1
        self.nodes.append(replace(beside, id=self.fresh - 1, op=op, args=args, kwargs=(), out=out, draw=None))
        return Ref(self.fresh - 1)

    # -- what a loop reads ------------------------------------------------------------------------------------

    def loop(self, node: Node) -> None:
        body, count, carries, stacked, *rest = node.args
        entries = tuple(self.read(entry) for entry in stacked)
        self.nodes.append(replace(node, args=(at_once(body), count, carries, entries, *rest)))

    def read(self, entry: Any) -> Any:
        """A stacked operand: where its rows are one tensor taken apart, that tensor with the rows' axis first."""
        if not isinstance(entry, tuple) or len(entry) < LEAST or not isinstance(entry[0], Ref):
            return entry
        node = self.made.get(entry[0].id)
        if node is None or node.op != UNBIND or node.marks or node.kwargs:
            return entry
        places = [r.index for r in entry if r.id == node.id and r.index is not None]
        turn = _turn(places)
        if not turn or len(places) < len(entry):
            return entry
        source, dim = node.args if len(node.args) > 1 else (*node.args, 0)
        whole = self.avals[source]
        first, last = sorted((places[0], places[-1]))
        found, aval = self.moved(node, source, whole, dim % len(whole.shape), 0)
        return self.part(node, found, aval, first, last, turn)

    def moved(self, beside: Node, ref: Ref, aval: Aval, axis: int, to: int) -> tuple[Ref, Aval]:
        """``ref`` with one axis in another place."""
        order = [k for k in range(len(aval.shape)) if k != axis]
        order.insert(to, axis)
        moved = Aval(tuple(aval.shape[k] for k in order), aval.dtype)
        if axis == to:
            return ref, aval
        return self.add(beside, "aten.permute.default", (ref, tuple(order)), moved), moved

    def part(self, beside: Node, ref: Ref, aval: Aval, first: int, last: int, turn: int) -> Ref:
        """Rows ``first`` to ``last`` (it included) of ``ref``, turned round where ``turn`` is -1."""
        shape = (last - first + 1, *aval.shape[1:])
        if shape != aval.shape:
            ref = self.add(beside, "aten.slice.Tensor", (ref, 0, first, last + 1), Aval(shape, aval.dtype))
        if turn < 0:
            ref = self.add(beside, "aten.flip.default", (ref, (0,)), Aval(shape, aval.dtype))
        return ref

    # -- what becomes of what it wrote ------------------------------------------------------------------------

    def together(self, node: Node) -> None:
        """``stack`` or ``cat`` of rows of a loop's result: those that follow each other are one operand."""
        pieces, dim = (*node.args, 0)[:2]
        if not isinstance(node.out, Aval) or not isinstance(pieces, tuple) or node.kwargs:
            self.nodes.append(node)
            return
        dim %= len(node.out.shape)
        found = [self.row(node, piece, dim) for piece in pieces]
        operands: list[Ref] = []
        k = 0
        while k < len(pieces):
            rows = _run(found, k)
            if rows is not None:
                operands.append(self.rows(node, rows, dim))
                k += rows.last - rows.first + 1
                continue
            operands.append(self.alone(node, pieces[k], dim) if node.op == STACK else pieces[k])
            k += 1
        # The same node, so that whoever reads it reads on.
        fewer = len(operands) < len(pieces)
        self.nodes.append(replace(node, op=CAT, args=(tuple(operands), dim)) if fewer else node)

    def row(self, node: Node, piece: Any, dim: int) -> _Row | None:
        """Of which loop's result an operand of ``node`` is a row, which, and whether it brings an axis of its own."""
        made = self.made.get(piece.id) if isinstance(piece, Ref) and piece.index is None else None
        new_axis = node.op == STACK
        if made is not None and node.op == CAT and made.op == UNSQUEEZE and isinstance(made.args[0], Ref):
            assert isinstance(made.out, Aval)
            if made.args[1] % len(made.out.shape) != dim:
                return None
            made, new_axis = self.made.get(made.args[0].id), True
        if made is None or made.op != SELECT or made.args[1] != 0 or not isinstance(made.args[0], Ref):
            return None
        loop = self.made.get(made.args[0].id)
        return (made.args[0], made.args[2], new_axis) if loop is not None and loop.op == ROLL else None

    def rows(self, beside: Node, rows: _Rows, dim: int) -> Ref:
        """Rows of a loop's result as one operand of a ``cat`` along ``dim``."""
        aval = self.avals[rows.of]
        ref = self.part(beside, rows.of, aval, rows.first, rows.last, rows.turn)
        part = Aval((rows.last - rows.first + 1, *aval.shape[1:]), aval.dtype)
        ref, moved = self.moved(beside, ref, part, 0, dim)
        if rows.new_axis:
            return ref
        joined = (*moved.shape[:dim], moved.shape[dim] * moved.shape[dim + 1], *moved.shape[dim + 2 :])
        return self.add(beside, "aten.reshape.default", (ref, joined), Aval(joined, aval.dtype))

    def alone(self, beside: Node, ref: Ref, dim: int) -> Ref:
        aval = self.avals[ref]
        shape = (*aval.shape[:dim], 1, *aval.shape[dim:])
        return self.add(beside, UNSQUEEZE, (ref, dim), Aval(shape, aval.dtype))


@dataclass(frozen=True)
class _Rows:
    """Rows ``first`` to ``last`` of a loop's stacked result, in the order of the loop or (``turn`` -1) its reverse.
    ``new_axis``: they are put together along an axis that they do not have."""

    of: Ref
    first: int
    last: int
    turn: int
    new_axis: bool


def _run(found: Sequence[_Row | None], start: int) -> _Rows | None:
    """The rows of one loop's result that begin at ``start``, where they are enough."""
    first, places = found[start], list[int]()
    for k in range(start, len(found)):
        row = found[k]
        if first is None or row is None or (row[0], row[2]) != (first[0], first[2]):
            break
        if len(places) > 1 and row[1] - places[-1] != places[1] - places[0]:
            break
        places.append(row[1])
    turn = _turn(places)
    if first is None or not turn or len(places) < LEAST:
        return None
    return _Rows(first[0], min(places), max(places), turn, first[2])


def _turn(places: Sequence[int]) -> int:
    """1 where they count up by one, -1 where down, else 0."""
    steps = {b - a for a, b in pairwise(places)}
    return steps.pop() if steps in ({1}, {-1}) else 0
