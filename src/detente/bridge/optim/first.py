"""A step that no graph can make: the first one, where state is drawn at random or on one branch of a test only; one
that computes eigenvectors anew. torch itself takes it, on the live module; what it leaves is traced for the later ones.

Whether the later ones can be traced is found before, on copies (``rehearsed``), so that a refusal comes when a step is
compiled and not after the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from detente.bridge.optim.hyper import Stale


@dataclass(frozen=True)
class TorchsStep:
    """Stands for a rule until torch has taken its step."""

    name: str
    flags: dict[str, bool] = field(default_factory=dict)

    together = True
    groups = ()

    @property
    def programs(self) -> dict[str, Any]:
        return {}

    group_of = programs

    def hyper(self, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
        if self.flags.get("taken"):
            raise Stale(f"torch has taken this step of {self.name}")
        return ()

    def due(self, optimizer: torch.optim.Optimizer) -> list[tuple[Any, Any, Any]]:
        return []

    def follow(self, optimizer: torch.optim.Optimizer, state: Any) -> None:
        pass

    numbers_into = follow

    def program_of(self, members: Sequence[str]) -> Any:
        raise KeyError(members)

    def init(self, params: Mapping[str, Any], hyper: Sequence[Any]) -> dict[str, Any]:
        return {}

    def read_state(self, optimizer: torch.optim.Optimizer, params: Mapping[str, Any]) -> dict[str, Any]:
        self.hyper(optimizer)
        return {}

    def write_state(
        self, optimizer: torch.optim.Optimizer, state: Any, params: Mapping[str, Any], whole: bool = False
    ) -> None:
        pass

    def elsewhere(self) -> list[torch.Tensor]:
        return []

    def replaced(self, optimizer: torch.optim.Optimizer) -> bool:
        return False

    def apply(
        self, params: Any, grads: Any, state: Any, hyper: Any, stacks: Any = None, skip: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return dict(params), dict(state)

    def stackable(self, members: Iterable[str]) -> bool:
        return False
