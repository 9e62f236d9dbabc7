"""``nn.Transformer`` asks whether the mask it was given is the causal one, which is a question about values.

The answer is only a hint: the mask is passed on beside it, and a causal mask gives the same attention with the hint
or without. While a program is captured the answer is no, and the bridge finds causal masks by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.modules.transformer as torch_transformer

from detente.bridge.threads import only_here


@contextmanager
def without_mask_hints() -> Iterator[None]:
    """``_detect_is_causal_mask`` answers from the caller's own hint alone."""
    plain = torch_transformer._detect_is_causal_mask

    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    torch_transformer._detect_is_causal_mask = only_here(detect, plain)
    try:
        yield
    finally:
        torch_transformer._detect_is_causal_mask = plain
