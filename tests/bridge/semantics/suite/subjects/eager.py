"""Torch eager: the subject that the others are judged by."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils import _pytree as pytree

from suite.case import Case, Moment, Observed, Run, error_of


def run(case: Case, run: Run) -> Observed:
    """Forward and backward of every batch, and the optimizer's step where the case has one."""
    model = run.model()
    torch.manual_seed(run.seed)
    optimizer = case.optimizer(model.parameters()) if case.optimizer else None
    moments = []
    try:
        for batch in run.batches():
            moments.append(_step(case, model, batch))
            if optimizer is not None:
                optimizer.step()
    except Exception as error:
        return Observed(tuple(moments), error_of(error))
    parameters = {n: p.detach().clone() for n, p in model.named_parameters()} if optimizer else None
    return Observed(tuple(moments), parameters=parameters)


def _step(case: Case, model: nn.Module, batch: object) -> Moment:
    model.zero_grad(set_to_none=True)
    value = case.loss(model, batch)
    loss, aux = value if isinstance(value, tuple) else (value, ())
    loss.backward()
    return Moment(
        loss.detach().clone(),
        tuple(t.detach().clone() for t in pytree.tree_leaves(aux)),
        {
            n: None if p.grad is None else p.grad.detach().clone()
            for n, p in model.named_parameters()
            if p.requires_grad
        },
        {n: b.detach().clone() for n, b in model.named_buffers()},
    )
