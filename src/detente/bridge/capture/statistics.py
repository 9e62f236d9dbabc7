"""Normalisation layers whose running statistics torch.export cannot follow, written out while a program is captured.

``BatchNorm(momentum=None)`` takes the number of batches so far out of a tensor, and ``InstanceNorm`` with
``track_running_stats`` writes its statistics inside an operator that export takes for a pure one. The modules' methods
are replaced (torch's own, two names); ``torch.nn.functional.instance_norm`` on statistics of one's own stays refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from detente.bridge.private import BatchNorm, InstanceNorm
from detente.bridge.threads import only_here


@contextmanager
def keep_statistics() -> Iterator[None]:
    """Both kinds of layer write their statistics with plain operators inside."""
    batch, instance = BatchNorm.forward, InstanceNorm._apply_instance_norm

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.momentum is not None or not (self.training and self.track_running_stats):
            return batch(self, x)
        self._check_input_dim(x)
        self.num_batches_tracked.add_(1)
        # the cumulative mean: each batch so far counts alike
        _move(self, x, [d for d in range(x.dim()) if d != 1], 1.0 / self.num_batches_tracked.double())
        return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def apply(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not (self.training and self.track_running_stats):
            return instance(self, x)
        _move(self, x, list(range(2, x.dim())), self.momentum or 0.0)
        return F.instance_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)

    BatchNorm.forward = only_here(forward, batch)  # type: ignore[method-assign]
    InstanceNorm._apply_instance_norm = only_here(apply, instance)  # type: ignore[method-assign]
    try:
        yield
    finally:
        BatchNorm.forward = batch  # type: ignore[method-assign]
        InstanceNorm._apply_instance_norm = instance  # type: ignore[method-assign]


def _move(layer: Any, x: torch.Tensor, over: list[int], share: Any) -> None:
    """``running = (1 - share) * running + share * statistic``; an instance's statistics are averaged over the batch."""
    with torch.no_grad():
        x = x.detach().to(layer.running_mean.dtype)
        for running, found in (
            (layer.running_mean, x.mean(over)),
            (layer.running_var, x.var(over, unbiased=True)),
        ):
            running.mul_(1 - share).add_(share * (found.mean(0) if found.dim() == 2 else found))
