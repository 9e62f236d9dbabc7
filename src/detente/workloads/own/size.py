"""The size of a user's model: what was typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detente.workloads.workload import Size


@dataclass(frozen=True)
class OwnSize(Size):
    """The one size of a user's model, called ``own``. ``target`` is what the user typed; ``settings`` are the
    ``key=value`` pairs after the ``?`` of an ``hf:`` name that are not dimensions."""

    target: str = ""
    settings: tuple[tuple[str, Any], ...] = ()
