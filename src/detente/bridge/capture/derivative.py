"""``torch.autograd.grad`` inside of the loss: one node, ``detente.derivative``, of the captured program.

torch records what its backward formulas compute, operator by operator; the bridge does not lower those. It keeps that
a value is the derivative of these tensors by those, and lowering differentiates the part of the program between them
with JAX (``lower/derivative.py``), any number of times.

What torch decides (which gradient is None, what is not connected, what was freed) it decides here, on the fake tensors:
``markers.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from detente.bridge.capture.markers import (
    DERIVATIVE,
    LEAF,
    adopt,
    capturing,
    marked,
    operator,
    seen,
    unseen,
)
from detente.bridge.capture.where import foreign, here
from detente.bridge.private import in_transform, run_backward
from detente.bridge.refusal import Refused, refuse
from detente.bridge.threads import only_here

# torch's own loops and branches differentiate their bodies while they are captured
_TORCHS_OWN = ("/_higher_order_ops/", "/_functorch/_aot_autograd", "/_functorch/aot_autograd")

ONE_BACKWARD = (
    "compile a step for each loss, with share= the other, and they train in turn; a gradient that the loss computes "
    "with is torch.autograd.grad"
)


@dataclass
class Derivatives:
    """What was differentiated in one capture."""

    lines: list[Any] = field(default_factory=list)

    def unreached(self, loss: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> frozenset[str]:
        """Names of the parameters to which torch gives no gradient of the loss. The program's own edges do not tell:
        the derivative of ``w * x + b`` by ``x`` reads ``b`` and is not connected to it. Empty where nothing was
        differentiated, because then they do tell."""
        if not self.lines or not loss.requires_grad:
            return frozenset()
        try:
            with unseen():
                found = _plain(
                    (loss,), (torch.ones_like(loss),), True, False, tuple(parameters.values()), True
                )
        except Refused:
            raise
        except RuntimeError as error:
            raise _raised("the backward pass of the loss", error, self.lines[-1]) from error
        return frozenset(n for n, g in zip(parameters, found, strict=True) if g is None)


_plain: Callable[..., Any] = run_backward


@contextmanager
def keep_derivatives() -> Iterator[Derivatives]:
    """``torch.autograd.grad`` inside becomes a node, whatever name it was imported by; ``backward`` is refused."""
    derivatives = Derivatives()
    module: Any = torch.autograd
    mode: Any = proxy_tensor.PreDispatchTorchFunctionMode
    plain, functions = module._engine_run_backward, mode.__torch_function__

    def run(outputs: Any, *arguments: Any, accumulate_grad: bool = False, **named: Any) -> Any:
        if capturing() is None or _torchs_own():
            return plain(outputs, *arguments, accumulate_grad=accumulate_grad, **named)
        if accumulate_grad:
            raise refuse(
                "transform",
                "backward() inside of the loss: a step has one backward pass, the loss's own",
                here(),
                ONE_BACKWARD,
            )
        return grad(derivatives, outputs, *arguments, **named)

    def function(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watched = func in (torch.Tensor.requires_grad_, _set_requires_grad)
        before = watched and args[0].requires_grad
        result = functions(self, func, types, args, kwargs)
        if watched and args[0].requires_grad and not before:
            _begin(args[0])
        return result

    module._engine_run_backward = only_here(run, plain)
    mode.__torch_function__ = function
    try:
        yield derivatives
    finally:
        module._engine_run_backward = plain
        mode.__torch_function__ = functions


_set_requires_grad: Any = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]


def _begin(x: torch.Tensor) -> None:
    """``x`` takes a gradient from here on: what read it before is no part of that. So what reads it from here on reads
    another node."""
    if seen(x) and not isinstance(x, torch.nn.Parameter):
        adopt(x, operator(LEAF)([x])[0])


def _torchs_own() -> bool:
    """Whether torch itself differentiates: no frame between it and its own is the user's."""
    frame: Any = sys._getframe(2)
    # "<string>": a program that was given to `python -c` or `exec`
    while frame is not None and not foreign(file := frame.f_code.co_filename) and file != "<string>":
        if any(part in frame.f_code.co_filename for part in _TORCHS_OWN):
            return True
        frame = frame.f_back
    return False


def grad(
    derivatives: Derivatives,
    outputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor | None],
    retain: bool | None,
    create: bool,
    inputs: Sequence[torch.Tensor],
    allow_unused: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients as ``torch.autograd.grad`` gives them. Raises Refused for what it would raise."""
    derivatives.lines.append(here())
    if not all(isinstance(t, torch.Tensor) for t in (*outputs, *inputs)):
        raise refuse("transform", "torch.autograd.grad of a GradientEdge", here(), "give it the tensor")
    not_hidden()
    try:
        with unseen():
            found = _plain(
                tuple(outputs),
                tuple(cotangents),
                retain,
                create,
                tuple(inputs),
                allow_unused,
                accumulate_grad=False,
            )
    except Refused:
        raise
    except RuntimeError as error:
        raise _raised("torch.autograd.grad", error, here()) from error
    used = [i for i, g in enumerate(found) if g is not None]
    if not used:
        return tuple(found)
    arguments = (list(outputs), [inputs[i] for i in used], list(cotangents), bool(create))
    values = marked(DERIVATIVE, [found[i] for i in used], *arguments)
    result: list[torch.Tensor | None] = [None] * len(found)
    for i, value in zip(used, values, strict=True):
        result[i] = value
    return tuple(result)


def not_hidden() -> None:
    """Raises Refused inside of torch's own vmap, whose tensors hide what they depend on."""
    if in_transform():
        what = "a derivative inside of torch.vmap over integers alone"
        raise refuse("transform", what, here(), "let it map over a tensor of floats, too")


def _raised(what: str, error: Exception, line: Any) -> Refused:
    first = next((text for text in str(error).splitlines() if text.strip()), type(error).__name__)
    hint = "plain PyTorch raises the same: mend it there"
    return refuse("transform", f"{what} raises: {first.strip()[:300]}", line, hint)
