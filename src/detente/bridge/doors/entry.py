"""``detente.compile``: an unmodified module, its loss and its torch optimizer as one XLA executable per
step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.weights import whole
from detente.bridge.kernels.build import begin
from detente.bridge.live.interrupts import held_back
from detente.bridge.live.seeded import given, next_seed
from detente.bridge.refusal import Refused
from detente.bridge.state.kept import one_arena
from detente.bridge.state.meta import on_meta
from detente.bridge.step.arguments import checked, criterion, takes_part
from detente.bridge.step.examine import check
from detente.bridge.step.options import Options
from detente.bridge.step.step import Step
from detente.bridge.telling import telling
from detente.collector import asked_seldom


def compile(
    model: nn.Module,
    loss: Callable[[Any, Any], Any],
    optimizer: torch.optim.Optimizer,
    *,
    example_batch: Any,
    certificate: str | None = None,
    seed: int | None = None,
    matmul: str = "highest",
    nonfinite: str = "raise",
    form: str | None = None,
    tune: bool | str = False,
    cache: bool = True,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    ema: float | None = None,
    weights: str | Path | None = None,
    share: Step | None = None,
    quiet: bool = False,
) -> Step:
    """The training step of ``model`` as one compiled program: forward, backward and optimizer.

    ``loss(model, batch)`` returns a 0-d floating tensor, or ``(loss, aux)`` with ``aux`` any pytree of
    tensors; ``batch`` is any pytree of tensors and plain values. ``certificate``: ``full`` compares the
    first step of every program with torch eager before the next step returns; ``short`` does it for the model with
    two repeats of each rolled block, where they live in an ``nn.ModuleList`` or ``nn.Sequential`` (of another model it
    is ``full``), and keeps no copy of the state to go back to; ``none`` does not. Default: ``full``, and ``short``
    for a model on the meta device. A certificate is kept beside its program, and one that is stored is not made again.
    ``seed`` starts the random numbers; the default follows from ``torch.initial_seed()``, so that ``torch.manual_seed``
    is honoured, and is another one for every further step since.
    ``matmul``: ``highest`` is float32 products as torch does them by default, ``tensorfloat32`` is torch's ``high``.
    ``nonfinite``: ``raise`` when a loss that is read is NaN or infinite, ``return`` gives it as it is.
    ``form`` asks for one form of the program (``unrolled``, ``rolled``, ``rolled+dots``, ...) instead of the
    rule's choice; ``tune`` compiles and measures every form first. ``tune="background"`` begins with the form that
    compiles fastest and compiles the other while training goes on, once that has lasted as long; between two steps it
    is certified against eager from the weights of that moment, both are measured on copies, and the faster one goes on.
    ``step.choice`` says what runs and why.
    ``cache``: look for the program on disk first, and keep it there (``$DETENTE_BRIDGE_CACHE``, else the
    user's cache folder).

    ``clip_value`` and ``clip_norm`` clip the gradients of the optimizer's parameters as
    ``torch.nn.utils.clip_grad_value_`` and ``clip_grad_norm_`` do, in this order. ``accumulate``: a batch is this
    many micro-batches, cut along the first axis of every tensor; their gradients are averaged, and aux is stacked.
    ``ema``: keep a moving average of the weights with this decay, as ``torch.optim.swa_utils.AveragedModel`` with
    ``get_ema_multi_avg_fn``; ``step.averages()`` gives it.

    ``weights``, for a model on the meta device: a safetensors file, the index of a sharded checkpoint, or the folder of
    either; or ``"init"``, every module's own initialisation from ``seed``. The module's parameters stay on the meta
    device (its buffers do not), so that nothing is held twice, until ``step.sync_to_torch()`` gives them memory.

    ``share``: a step of the same module, or of one that has parameters in common with it, to train together with (a
    GAN's generator beside its discriminator): before either runs, it takes over what the other has changed. Without it
    every step trains weights of its own.

    ``quiet``: say nothing. By default a call that takes longer than a second (this one, the second step, which makes
    the certificate, a step that needs another program) says what it does: on standard error where that is a terminal or
    a notebook, to the logger ``detente`` elsewhere.

    On a CPU the process's allocator keeps from now on what a step frees, so that the next one pays for no fresh pages
    (``DETENTE_KEEP_MEMORY=0`` leaves it alone, and so does any setting of your own: ``MALLOC_*``, ``GLIBC_TUNABLES``).

    Raises Refused with every reason, each with the user's file and line; TypeError or ValueError for an argument that
    is none of what it takes.

    >>> step = detente.compile(model, loss, torch.optim.AdamW(model.parameters()), example_batch=batch)
    >>> value = step(batch)     # a 0-d torch tensor, ready when read
    >>> step.sync_to_torch()    # weights, buffers and optimizer state back in the live module
    """
    takes_part(model, loss)
    other: Any = share
    if other is not None and not isinstance(other, Step):
        raise TypeError(f"share is a {type(share).__name__}; it is another step, which detente.compile made")
    told = checked(
        certificate=certificate,
        seed=seed,
        matmul=matmul,
        nonfinite=nonfinite,
        tune=tune,
        clip_norm=clip_norm,
        clip_value=clip_value,
        accumulate=accumulate,
        ema=ema,
    )
    if found := criterion(loss):
        raise Refused(found)
    chosen = next_seed() if seed is None else told["seed"]
    by_default = "short" if on_meta(model) else "full"
    told |= {"certificate": told["certificate"] or by_default, "seed": chosen % 2**32}
    options = Options(**told, form=form, cache=cache, weights=weights, quiet=quiet)
    whole(model)
    one_arena()
    begin()
    with held_back(), telling(f"step of {type(model).__name__}", quiet), asked_seldom():
        step = Step(model, loss, optimizer, example_batch, options, share)
    if seed is None:
        given()
    return step


__all__ = ["check", "compile"]
