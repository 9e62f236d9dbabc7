"""Whether a tensor's values lie in one memory, as those of a sparse and of a nested one do not."""

from __future__ import annotations

import torch


def dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested
