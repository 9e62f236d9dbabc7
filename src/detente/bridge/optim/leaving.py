"""What a step has computed, into the live optimizer that it belongs to, and nothing in the place of what somebody else
has put there since: a group that was removed, a flag that was turned, an attribute that was bound to another tensor.

The step wrote to the objects that stood there when it ran. Where another one stands now, the values go to the one that
the step knew, as eager had put them there before the edit, and the new one stays.

How it can fail: an edit that makes an object what it was before (a list that loses an item and gets one back).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from detente.bridge.optim.reach import (
    CONTAINERS,
    SEQUENCES,
    Place,
    Spot,
    Table,
    holder,
    keyed,
    rebuilt,
    unmade,
)

_NOTHING: Any = object()  # stands there


@dataclass
class Left:
    """The live optimizer as a rule last saw or left it: what was at each place, and the object itself."""

    at: Mapping[Place, Spot]
    objects: dict[Place, Any]

    def holder(self, optimizer: Any, place: Place, params: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
        """As ``reach.holder``, of the object that was there: groups may stand in another order by now."""
        table = self.objects.get(place[:-1]) if len(place) > 1 else None
        if table is None or isinstance(
            table, defaultdict
        ):  # a table of states may have been replaced by a seen one
            return holder(optimizer, keyed(place, params))
        kind, key = keyed(place, params)[-1]
        return (vars(table) if kind == "attr" else table), key


def leave(
    optimizer: Any,
    left: Left,
    table: Table,
    value: Callable[[Place, Spot, Any], Any],
    params: Mapping[str, torch.Tensor],
) -> None:
    """Makes ``optimizer``, which was ``left``, what ``table`` says; ``value`` as for ``reach.put``. Numbers that stood
    there before the step are the live ones. ``left`` is that of now, behind it."""
    leaving = _Leaving(left, table, value, params)
    leaving.child((), optimizer)
    left.at, left.objects = table.at, leaving.made


class _Leaving:
    def __init__(
        self,
        left: Left,
        table: Table,
        value: Callable[[Place, Spot, Any], Any],
        params: Mapping[str, torch.Tensor],
    ) -> None:
        self.left, self.table, self.value, self.params = left, table, value, params
        self.made: dict[Place, Any] = {}

    def child(self, place: Place, old: Any) -> Any:
        """What is to stand at a place where ``old`` stands."""
        spot, known = self.table.at.get(place), self.left.at.get(place)
        if known is not None and not self.own(place, known, old):
            self.elsewhere(place)
            return old
        if spot is None:  # the step has taken it away
            return _NOTHING
        if known is None and old is not _NOTHING:
            return old
        self.made[place] = new = self.new(place, spot, known, old)
        return new

    def own(self, place: Place, known: Spot, old: Any) -> bool:
        """Whether what stands there is what was left there."""
        if old is _NOTHING:
            return False
        if known.kind in ("int", "float"):
            return isinstance(old, int | float)
        if known.kind == "param":
            return old is self.params.get(known.detail)
        then = self.left.objects.get(place)
        if old is then or (isinstance(old, defaultdict) and isinstance(then, defaultdict)):
            return True
        return known.kind in ("plain", "set") and type(old) is type(then) and old == then

    def elsewhere(self, place: Place) -> None:
        """Somebody has put another thing there, or nothing: the values go into what stood there."""
        spot, then = self.table.at.get(place), self.left.objects.get(place)
        self.made[place] = then
        known = self.left.at[place]
        if spot is None or then is None or spot.kind != known.kind:
            return
        if spot.kind in CONTAINERS:
            self.container(place, spot, known, then)
        elif spot.kind == "tensor":
            self.value(place, spot, then)

    def new(self, place: Place, spot: Spot, known: Spot | None, old: Any) -> Any:
        if spot.kind == "same":
            return self.made.get(spot.detail, old)
        if spot.kind in CONTAINERS:
            alike = known is not None and known.kind == spot.kind and known.detail[0] is spot.detail[0]
            return self.container(place, spot, known if alike else None, old if alike else _NOTHING)
        if spot.kind == "tensor" or (spot != known and spot.kind in ("int", "float", "scalar")):
            return self.value(place, spot, old if isinstance(old, torch.Tensor) else None)
        if spot == known:
            return old
        if spot.kind == "param":
            return self.params[spot.detail]
        return set(spot.detail) if spot.kind == "set" else self.table.values[place]

    def container(self, place: Place, spot: Spot, known: Spot | None, old: Any) -> Any:
        kind, _, steps = spot.detail
        then = known.detail[2] if known is not None else ()
        if issubclass(kind, SEQUENCES):
            return self.sequence(place, spot, then, old)
        new = unmade(kind) if old is _NOTHING else old
        self.made[place] = new
        # past the methods of a table that tells of every question
        is_dict = issubclass(kind, dict)
        held = dict(dict.items(new)) if is_dict else dict(vars(new))
        for step in dict.fromkeys((*steps, *then)):
            ((_, key),) = keyed((step,), self.params)
            before = held.get(key, _NOTHING)
            after = self.child((*place, step), before)
            if after is before:
                continue
            if is_dict and after is _NOTHING:
                dict.__delitem__(new, key)
            elif is_dict:
                dict.__setitem__(new, key, after)
            elif after is _NOTHING:
                del vars(new)[key]
            else:
                vars(new)[key] = after
        return new

    def sequence(self, place: Place, spot: Spot, then: tuple[Any, ...], old: Any) -> Any:
        kind, maxlen, steps = spot.detail
        items = [] if old is _NOTHING else list(old)
        places = [(*place, step) for step in then]
        if len(items) != len(places) or not all(
            self.own(at, self.left.at[at], item) for at, item in zip(places, items, strict=True)
        ):  # somebody has put something in, or taken something out
            for at in places:
                self.elsewhere(at)
            return old
        if issubclass(kind, list | deque) and old is not _NOTHING:
            self.made[place] = old
        items += [_NOTHING] * (len(steps) - len(items))
        found = [self.child((*place, step), item) for step, item in zip(steps, items, strict=False)]
        if old is _NOTHING:
            return deque(found, maxlen) if issubclass(kind, deque) else rebuilt(kind, found)
        if len(found) == len(then) and all(a is b for a, b in zip(found, items, strict=False)):
            return old
        if issubclass(kind, list):
            old[:] = found
            return old
        if issubclass(kind, deque):
            old.clear()
            old.extend(found)
            return old
        return rebuilt(kind, found)
