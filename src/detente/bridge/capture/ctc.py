"""``ctc_loss`` keeps a table for its backward pass whose size depends on the target lengths, so torch refuses to trace
it. Nothing of the loss depends on that size: while a program is captured, the call is one opaque operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from detente.bridge.threads import only_here

OP = "detente::ctc_loss"  # lowered as aten.ctc_loss
_MEAN, _SUM = 1, 2


@cache
def _operator() -> Any:
    """Made once: an operator lives as long as the process."""
    schema = (
        "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
        "int reduction, bool zero_infinity) -> Tensor"
    )
    made = torch.library.custom_op(OP, torch.ctc_loss, mutates_args=(), schema=schema)

    def shape(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
        blank: int,
        reduction: int,
        zero_infinity: bool,
    ) -> torch.Tensor:
        single = log_probs.ndim == 2
        return log_probs.new_empty(() if reduction in (_MEAN, _SUM) or single else log_probs.shape[1:2])

    made.register_fake(shape)

    # for a derivative inside of the loss, on fake tensors: what it is connected to
    def back(saved: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        (log_probs,) = saved.saved_tensors
        return (log_probs * 0 + grad.sum() * 0, *(None for _ in range(6)))

    made.register_autograd(back, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    return made


@contextmanager
def keep_ctc() -> Iterator[None]:
    """Calls of ``torch.ctc_loss`` (and so ``nn.functional.ctc_loss`` and ``nn.CTCLoss``) inside become operators."""
    plain, operator = torch.ctc_loss, _operator()

    def lengths(value: torch.Tensor | Sequence[int]) -> torch.Tensor:
        return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.int64)

    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor | Sequence[int],
        target_lengths: torch.Tensor | Sequence[int],
        blank: int = 0,
        reduction: int = _MEAN,
        zero_infinity: bool = False,
    ) -> torch.Tensor:
        sizes = lengths(input_lengths), lengths(target_lengths)
        return operator(log_probs, targets, *sizes, blank, reduction, zero_infinity)

    torch.ctc_loss = only_here(ctc_loss, plain)
    try:
        yield
    finally:
        torch.ctc_loss = plain
