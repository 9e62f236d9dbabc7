"""``detente.compile``: an unmodified module, its loss and its torch optimizer as one XLA executable per
step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from detente.bridge.refusal import Reason, Refused
from detente.bridge.step import Options, Step


def compile(
    model: nn.Module,
    loss: Callable[[Any, Any], Any],
    optimizer: torch.optim.Optimizer,
    *,
    example_batch: Any,
    certificate: str = "full",
    seed: int | None = None,
    matmul: str = "highest",
    nonfinite: str = "raise",
    form: str | None = None,
    tune: bool = False,
) -> Step:
    """The training step of ``model`` as one compiled program: forward, backward and optimizer.

    ``loss(model, batch)`` returns a 0-d floating tensor, or ``(loss, aux)`` with ``aux`` any pytree of
    tensors; ``batch`` is any pytree of tensors and plain values. ``certificate``: ``full`` compares the
    first step with torch eager before the second returns, ``none`` does not. ``seed`` (default
    ``torch.initial_seed()``, so ``torch.manual_seed`` is honoured) starts the random numbers. ``matmul``:
    ``highest`` is float32 products as torch does them by default, ``tensorfloat32`` is torch's ``high``.
    ``nonfinite``: ``raise`` when a loss that is read is NaN or infinite, ``return`` gives it as it is.
    ``form`` asks for one form of the program (``unrolled``, ``rolled``, ``rolled+dots``, ...) instead of the
    rule's choice; ``tune`` compiles and measures every form first. ``step.choice`` says what runs and why.

    Raises Refused with every reason, each with the user's file and line.

    >>> step = detente.compile(model, loss, torch.optim.AdamW(model.parameters()), example_batch=batch)
    >>> value = step(batch)     # a 0-d torch tensor, ready when read
    >>> step.sync_to_torch()    # weights, buffers and optimizer state back in the live module
    """
    for name, value, allowed in (
        ("certificate", certificate, ("full", "none")),
        ("nonfinite", nonfinite, ("raise", "return")),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; it is one of {', '.join(allowed)}")
    chosen = torch.initial_seed() if seed is None else seed
    options = Options(certificate, chosen % 2**32, matmul, nonfinite, form, tune)
    return Step(model, loss, optimizer, example_batch, options)


def check(
    model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any, optimizer: Any = None
) -> tuple[Reason, ...]:
    """Everything that stands between this model and the bridge, found in one pass; empty when nothing does.

    Captures and lowers, and compiles nothing. ``detente bridge check MODEL`` prints it.
    """
    from detente.bridge.capture.export import capture
    from detente.bridge.lower.driver import missing
    from detente.bridge.optim.rule import trace

    reasons: list[Reason] = []
    try:
        reasons += missing(capture(model, loss, batch).graph)
    except Refused as refused:
        reasons += refused.reasons
    if optimizer is not None:
        try:
            trace(optimizer, model.named_parameters())
        except Refused as refused:
            reasons += refused.reasons
    return tuple(reasons)
