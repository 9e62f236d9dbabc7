"""Détente's bridge: ``detente.compile`` as a user calls it, without the certificate (which would judge for us)."""

from __future__ import annotations

from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from detente import bridge
from detente.bridge.capture.capture import capture
from detente.bridge.lower.precision import x64
from detente.bridge.program.program import Program
from detente.bridge.random.keys import step_key
from detente.bridge.state.place import from_jax, place
from suite.case import Case, Moment, Observed, Run, error_of


def run(case: Case, run: Run) -> Observed:
    """Every batch is one step. Where the case has no optimizer, one with rate zero leaves the weights as they are."""
    model = run.model()
    torch.manual_seed(run.seed)
    make = case.optimizer or (lambda params: torch.optim.SGD(params, lr=0.0))
    moments: list[Moment] = []
    batches = run.batches()
    try:
        program = _text(model, case, batches[0]) if case.program else ""
        step = bridge.compile(
            model,
            case.loss,
            make(model.parameters()),
            example_batch=batches[0],
            certificate="none",
            nonfinite="return",
            cache=False,
        )
        for batch in batches:
            moments.append(_moment(step, model, batch))
    except Exception as error:
        return Observed(tuple(moments), error_of(error))
    parameters = None
    if case.optimizer:
        step.sync_to_torch()
        parameters = {n: p.detach().clone() for n, p in model.named_parameters()}
    return Observed(tuple(moments), parameters=parameters, program=program)


def _moment(step: Any, model: Any, batch: Any) -> Moment:
    gradients = step.gradients(batch)  # with the random numbers of the step that follows
    value = step(batch)
    loss, aux = value if isinstance(value, tuple) else (value, ())
    loss.item()  # raises what torch would have raised inside of the step
    held = step.values()
    return Moment(
        loss.detach().clone(),
        tuple(t.detach().clone() for t in pytree.tree_leaves(aux)),
        {n: gradients.get(n) for n, p in model.named_parameters() if p.requires_grad},
        {n: from_jax(held[n]) for n, _ in model.named_buffers()},
    )


def _text(model: Any, case: Case, batch: Any) -> str:
    """The jaxpr of loss and gradients."""
    captured = capture(model, case.loss, batch)
    program = Program(captured.graph)
    values = {n: t.detach().numpy() for n, t in captured.weights.tensors.items()}
    with x64():
        made = jax.make_jaxpr(program.gradients(program.connected))(
            values, place(batch).arrays, step_key(0, 0)
        )
    return str(made)
