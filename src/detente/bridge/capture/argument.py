"""One argument of a call, wherever the caller put it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def argument(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, name: str, default: Any = None
) -> Any:
    """The argument at ``position``, or called ``name``, or ``default``.

    >>> argument((1, 2), {"dim": 3}, 1, "end"), argument((1, 2), {"dim": 3}, 2, "dim"), argument((), {}, 0, "p", 0.5)
    (2, 3, 0.5)
    """
    return args[position] if len(args) > position else kwargs.get(name, default)
