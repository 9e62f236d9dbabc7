"""What a loss gives back beside itself that is a tensor of the module, or shows the memory of one (``model.scale``,
``model.scale.detach()``, ``model.fc.weight[0]``): in eager that is the live one, which the update has moved by the time
that anybody reads it, and moves with every later step. A value of the program would be that of before the update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from detente.bridge.capture.data import one_memory
from detente.bridge.live.guard import shown_by
from detente.bridge.refusal import refuse


@dataclass(frozen=True)
class Lasting:
    """The ``leaf``-th tensor of aux is the tensor called ``name`` (``size`` is None), or a view of it."""

    leaf: int
    name: str
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0  # from where that tensor begins

    def of(self, live: torch.Tensor) -> torch.Tensor:
        """The live tensor, or a view that asks and tells as it does."""
        if self.size is None:
            return live
        size, stride, offset = self.size, self.stride, self.offset
        return shown_by(
            live, lambda one: one.detach().as_strided(size, stride, one.storage_offset() + offset)
        )


def lasting(leaves: Sequence[torch.Tensor], named: Iterable[tuple[str, torch.Tensor]]) -> list[Lasting]:
    """Of ``leaves`` those that are, or show, one of the tensors that are named. Raises Refused for one that shows it as
    something else (``weight.view(torch.int32)``)."""
    known = [(name, tensor) for name, tensor in named if tensor.layout is torch.strided]
    found = []
    for i, leaf in enumerate(leaves):
        name, tensor = next(((n, t) for n, t in known if leaf is t or one_memory(leaf, t)), ("", leaf))
        if not name:
            continue
        if leaf is tensor:
            found.append(Lasting(i, name))
            continue
        if (
            leaf.dtype != tensor.dtype
            or leaf.is_conj() != tensor.is_conj()
            or leaf.is_neg() != tensor.is_neg()
        ):
            raise refuse(
                "loss",
                f"what the loss gives back shows the memory of {name} as {leaf.dtype}, and moves with the update",
                hint="clone it: the loss then gives back what it holds before the update",
            )
        size, stride = tuple(map(int, leaf.shape)), tuple(map(int, leaf.stride()))
        offset = int(leaf.storage_offset()) - int(tensor.storage_offset())
        found.append(Lasting(i, name, size, stride, offset))
    return found
