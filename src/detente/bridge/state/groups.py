"""What stands in ``param_groups`` beside the parameters, for a checkpoint: ``lr`` and other numbers, flags and words.

As in ``optimizer.state_dict()``, but for values that are no plain ones (a function, a matrix), which stay the live
optimizer's, and the choice among torch's own implementations of one update (``foreach``, ``fused``). Groups are found
again by their parameters' names, whatever their order.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detente.bridge.optim.hyper import PATH

Groups = list[dict[str, Any]]  # {"params": names, "values": {key: plain value}}
_LEFT = frozenset({"params", "param_names", *PATH})


def told(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Groups:
    """Every group, ready for JSON; ``names`` has torch's name of a parameter by its ``id()``."""
    return [
        {
            "params": _params(group, names),
            "values": {
                key: plain
                for key, value in group.items()
                if key not in _LEFT and (plain := _plain(value)) is not _NONE
            },
        }
        for group in optimizer.param_groups
    ]


def put(
    groups: Groups | None, optimizer: torch.optim.Optimizer, names: Mapping[int, str], path: str | Path
) -> None:
    """Into the live groups of the same parameters. Warns, and changes nothing, where there are other ones, or none in
    the file at ``path`` (None)."""
    stored = {frozenset(group["params"]): group["values"] for group in groups or ()}
    live = [frozenset(_params(group, names)) for group in optimizer.param_groups]
    if groups is None or stored.keys() != set(live) or len(groups) != len(live):
        what = (
            "no numbers of param_groups"
            if groups is None
            else f"the numbers of {len(groups)} other param_groups"
        )
        rates = ", ".join(str(_plain(group.get("lr"))) for group in optimizer.param_groups)
        warnings.warn(
            f"{path} holds {what}: lr ({rates}) and the others stay what they are here; set them as they were when it "
            "was saved",
            stacklevel=3,
        )
        return
    for group, params in zip(optimizer.param_groups, live, strict=True):
        for key, value in stored[params].items():
            group[key] = _like(group.get(key), value)


def _params(group: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    return [names.get(id(param), f"#{place}") for place, param in enumerate(group["params"])]


_NONE = object()


def _plain(value: Any) -> Any:
    """As JSON has it; ``_NONE`` for what it has not."""
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 and not value.is_meta else _NONE
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple | list):
        each = [_plain(one) for one in value]
        return _NONE if any(one is _NONE for one in each) else each
    return value if isinstance(value, bool | int | float | str | None) else _NONE


def _like(live: Any, value: Any) -> Any:
    """``value`` as what stands there now: in the same tensor, in a tuple."""
    if isinstance(live, torch.Tensor) and isinstance(value, int | float):
        with torch.no_grad():
            return live.fill_(value)
    if isinstance(value, list):
        before: Sequence[Any] = live if isinstance(live, tuple | list) and len(live) == len(value) else value
        made = [_like(one, other) for one, other in zip(before, value, strict=True)]
        return made if isinstance(live, list) else tuple(made)
    return value
