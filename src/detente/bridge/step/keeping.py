"""The places in Python that steps fill for the loop (capture/kept.py): what forward leaves there and no step reads.

Nobody watches them for changes: each program was seen to be the same whatever stands in its own, and what a program
does not fill it must not read. What somebody else puts there is another matter, unless it is alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from detente.bridge.capture.captured import Captured
from detente.bridge.capture.held import with_each
from detente.bridge.capture.kept import Kept, Leaf, without_value
from detente.bridge.live.places import has, place
from detente.bridge.live.places import put as put_into
from detente.bridge.live.sources import ABSENT, tensors_in
from detente.bridge.state.pending import Pending

Place = tuple[int, Any]


@dataclass
class Row:
    """A place: what stood in it before the first step, and what the last one put there."""

    table: Any
    key: Any
    name: str
    first: Any = ABSENT
    last: Any = ABSENT
    kept: list[Kept] = field(default_factory=list)  # by each program

    @property
    def now(self) -> Any:
        return self.table[self.key] if has(self.table, self.key) else ABSENT

    def put(self, value: Any) -> None:
        if value is not ABSENT:
            put_into(self.table, self.key, value)
        elif has(self.table, self.key):
            del self.table[self.key]

    def alike(self, value: Any) -> bool:
        """Whether this is what stood there at first, or might have been put there by a step."""
        return value is self.last or value is self.first or any(kept.fits(value) for kept in self.kept)


class Keeping:
    """The places of one step's programs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._rows: dict[Place, Row] = {}
        # By the id of a captured program: itself, so that the id stays its own, how many results are kept, and where.
        self._of: dict[int, tuple[Captured, int, list[tuple[Row, Kept]]]] = {}

    def knows(self, captured: Captured) -> bool:
        """The places of a program, before its first step; whether any is new."""
        if id(captured) in self._of or not captured.kept:
            return False
        before = len(self._rows)
        count = sum(output.kind == "kept" for output in captured.graph.outputs)
        places = [(self._row(kept), kept) for kept in captured.kept]
        self._of[id(captured)] = (captured, count, places)
        return len(self._rows) > before

    def _row(self, kept: Kept) -> Row:
        table = self._table(kept)
        found = self._rows.setdefault(place(table, kept.key), Row(table, kept.key, kept.name))
        if found.last is ABSENT:
            found.first = found.last = found.now
        found.kept.append(kept)
        return found

    def _table(self, kept: Kept) -> Any:
        return kept.table if kept.path is None else vars(self.model.get_submodule(kept.path))

    def let_go(self) -> None:
        """The programs that filled the places are gone: of a place that somebody else has emptied since nobody knows
        (``prune.remove`` takes the attribute away that its hook sets, and a parameter has that name again)."""
        self._rows = {
            at: row for at, row in self._rows.items() if row.now is not ABSENT or row.last is ABSENT
        }
        self._of.clear()

    @property
    def places(self) -> Mapping[int, frozenset[Any]]:
        """Keys by the id of what holds them."""
        held = {owner for owner, _ in self._rows}
        return {owner: frozenset(key for other, key in self._rows if other == owner) for owner in held}

    def fills_all(self, captured: Captured) -> bool:
        """Whether this program fills every place."""
        return self._rows.keys() <= {place(self._table(kept), kept.key) for kept in captured.kept}

    def fill(self, captured: Captured, aux: Sequence[Any], live: Mapping[str, torch.Tensor]) -> None:
        """Behind a step of this program, whose last results beside the loss are what is kept. A number waits for it."""
        known = self._of.get(id(captured))
        if known is None:
            return
        _, count, places = known
        results = aux[len(aux) - count :]

        def of(leaf: Any) -> Any:
            if not isinstance(leaf, Leaf):  # a tensor of the module
                return leaf.of(live[leaf.name])
            array = results[leaf.index]
            return np.asarray(array).item() if leaf.number else Pending.of(leaf.aval, lambda: array, array)

        for row, kept in places:
            row.last = kept.filled(of)
            row.put(row.last)

    def strange(self) -> dict[str, tuple[Any, Any]]:
        """What somebody else put into a place, and is not alike: name -> (None, it). It is known from then on."""
        found: dict[str, tuple[Any, Any]] = {}
        for row in self._rows.values():
            now = row.now
            if not row.alike(now):
                found[row.name] = None, None if now is ABSENT else now
                row.first = row.last = now
        return found

    @contextmanager
    def at_first(self) -> Iterator[None]:
        """What stood in the places before the first step, for as long as the block takes: a program is named by it."""
        with self._with([(row, row.first) for row in self._rows.values()]):
            yield

    def settle(self) -> None:
        """Before a capture: nothing that is still on its way, as torch.export knows it for no tensor."""
        for row in self._rows.values():
            if row.now is row.last:
                row.last = with_each(row.last, Pending, Pending.wait)
                row.put(row.last)

    def read_by(
        self, captured: Captured, held: Callable[[str], torch.Tensor], again: Callable[[], bool]
    ) -> str:
        """The name of a place that this program does not fill, and reads; empty where there is none. ``held`` gives
        what it reads besides the module's tensors, by name, and ``again`` says whether one that is captured now is
        the same."""
        own = {place(self._table(kept), kept.key) for kept in captured.kept}
        rows = [row for at, row in self._rows.items() if at not in own]
        inputs = {id(held(name)) for name in captured.outside} if rows else set()
        for row in rows:
            if any(id(tensor) in inputs for tensor in tensors_in(row.now)):
                return row.name
            with self._with([(row, row.kept[0].filled(without_value))]):
                if not again():
                    return row.name
        return ""

    @contextmanager
    def _with(self, values: Sequence[tuple[Row, Any]]) -> Iterator[None]:
        now = [(row, row.now) for row, _ in values]
        try:
            for row, value in values:
                row.put(value)
            yield
        finally:
            for row, held in now:
                row.put(held)
