"""torchax, used as its own training examples use it: ``torch.func.functional_call`` under
``interop.jax_value_and_grad`` under ``interop.jax_jit``, with the environment on.

A case with an optimizer is a plain PyTorch loop (``loss.backward()``, ``optimizer.step()``) on its ``jax`` device,
because the case is about the unmodified optimizer. ``configure("accuracy")`` turns on torchax's accuracy mode (64
bits, full-precision products, torch's result dtypes); without it the defaults stand.

Everything here is on torchax's side where there is a choice: tensors that the model makes without naming a device
are made on the ``jax`` device, seeds go to torchax's generator as well as to torch's, and a gradient of zeros counts
as torch's None.
"""

from __future__ import annotations

from typing import Any

import jax
import torch
import torchax
from torch import nn
from torch.utils import _pytree as pytree
from torchax import interop

from suite.case import Case, Moment, Observed, Run, error_of


def configure(mode: str) -> None:
    """``defaults`` or ``accuracy``, for the rest of the process."""
    if mode == "accuracy":
        torchax.enable_accuracy_mode()


class _Holder(nn.Module):
    """Model and loss as one call, so that ``functional_call`` reaches what the loss does with the model, too."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model = model
        self.__dict__["loss"] = loss

    def forward(self, batch: Any) -> Any:
        return self.__dict__["loss"](self.model, batch)


def run(case: Case, run: Run) -> Observed:
    """Every batch is one call of one jitted function; buffers that it returns go into the next call."""
    model = run.model()
    torch.manual_seed(run.seed)
    env = torchax.default_env()
    if case.optimizer:
        return _loop(case, run, model, env)
    holder = _Holder(model, case.loss)
    params = {n: p.detach() for n, p in holder.named_parameters() if p.requires_grad}
    buffers = {n: p.detach() for n, p in holder.named_parameters() if not p.requires_grad}
    buffers |= {n: b.detach() for n, b in holder.named_buffers()}
    own = [n for n, _ in holder.named_buffers()]

    def loss(params: Any, buffers: Any, batch: Any) -> Any:
        held = {**params, **buffers}
        value = torch.func.functional_call(holder, held, (batch,))
        first, aux = value if isinstance(value, tuple) else (value, ())
        return first, (tuple(pytree.tree_leaves(aux)), {n: held[n] for n in buffers})

    graded = interop.jax_value_and_grad(loss, {"has_aux": True})
    step = interop.jax_jit(graded)
    moments: list[Moment] = []
    program, batches = "", run.batches()
    try:
        params, buffers = env.to_xla(params), env.to_xla(buffers)
        env.manual_seed(run.seed)
        with env, torch.device("jax"):
            for batch in batches:
                given = env.to_xla(batch)
                if case.program and not program:
                    plain = interop.jax_view(graded)
                    program = str(jax.make_jaxpr(plain)(*interop.jax_view((params, buffers, given))))
                    env.manual_seed(run.seed)
                (value, (aux, buffers)), gradients = step(params, buffers, given)
                moments.append(
                    Moment(
                        _cpu(value),
                        tuple(map(_cpu, aux)),
                        {n.removeprefix("model."): _cpu(g) for n, g in gradients.items()},
                        {n.removeprefix("model."): _cpu(buffers[n]) for n in own},
                    )
                )
    except Exception as error:
        return Observed(tuple(moments), error_of(error))
    return Observed(tuple(moments), program=program)


def _loop(case: Case, run: Run, model: nn.Module, env: Any) -> Observed:
    """PyTorch's own loop on torchax's device."""
    moments: list[Moment] = []
    batches = run.batches()
    assert case.optimizer is not None
    try:
        with env, torch.device("jax"):
            model = model.to("jax")
            env.manual_seed(run.seed)
            optimizer = case.optimizer(model.parameters())
            for batch in batches:
                model.zero_grad(set_to_none=True)
                value = case.loss(model, env.to_xla(batch))
                first = value[0] if isinstance(value, tuple) else value
                first.backward()
                gradients = {n: None if p.grad is None else _cpu(p.grad) for n, p in model.named_parameters()}
                optimizer.step()
                moments.append(
                    Moment(_cpu(first), (), gradients, {n: _cpu(b) for n, b in model.named_buffers()})
                )
            parameters = {n: _cpu(p) for n, p in model.named_parameters()}
    except Exception as error:
        return Observed(tuple(moments), error_of(error))
    return Observed(tuple(moments), parameters=parameters)


def _cpu(tensor: Any) -> torch.Tensor:
    """A torch tensor of torchax's, or any array of JAX's, on the CPU."""
    found = tensor.detach().torch() if hasattr(tensor, "torch") else tensor
    return found.clone() if isinstance(found, torch.Tensor) else torch.as_tensor(found)
