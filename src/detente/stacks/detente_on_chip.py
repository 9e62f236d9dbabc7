"""The bridge's programs of a workload, compiled for a chip that is not here. No weight is ever written or read, so that
what trains nowhere here can be planned here.

``capture`` refuses a module on the meta device, since a step of it could not run; nothing runs, so its inner half is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

from detente.bridge.capture import batch as batches
from detente.bridge.capture.cached import Caches
from detente.bridge.capture.export import Subject, export
from detente.bridge.capture.weights import weights
from detente.bridge.choose.choose import alike_of
from detente.bridge.choose.forms import FORMS, available, shape
from detente.bridge.doors.region import function_of
from detente.bridge.graph import Graph, without_dead
from detente.bridge.live.ran import Ran
from detente.bridge.live.walk import sources
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.optim.rule import trace
from detente.bridge.passes.connected import connected
from detente.bridge.passes.masks import recognise_masks
from detente.bridge.program.program import Program, shape_of
from detente.bridge.roll.fold import roll
from detente.bridge.state.place import shapes_of
from detente.records.chip import Chip
from detente.stacks.chips import plan_on
from detente.stacks.detente import DetenteRunning
from detente.workloads.workload import Size

Loss = Callable[[Any, Any], Any]


class Unheld(DetenteRunning):
    """A module whose weights are addresses that nothing was ever written to: the system gives memory to what is
    touched. On the CPU and not on the meta device, where torch's autocast does nothing and a bf16 row would be planned
    in fp32."""

    holds_weights = False

    def _module(self, size: Size) -> nn.Module:
        with torch.device("meta"):
            module = super()._module(size)
        return _unwritten(module)


def _unwritten(module: nn.Module) -> nn.Module:
    """A module of the meta device with addresses for weights. What it ties stays one tensor: torch's own ``to_empty``
    makes one of every name, and a tied head with its two moments is a tenth of GPT-Neo's state."""
    ties: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                ties.setdefault(id(parameter), []).append((owner, name))
    held = module.to_empty(device="cpu")
    for (first, its), *others in ties.values():
        for owner, name in others:
            owner._parameters[name] = first._parameters[its]
    return held


def captured(module: nn.Module, loss: Loss, batch: Any) -> Graph:
    """The graph of a module with its loss and a batch. Values are neither read nor computed."""
    tensors, layout = batches.flatten(batch)
    held = weights(module)
    before = sources(module, loss)
    found, _ = export(Subject(module, loss, before, Ran(), Caches(before)), layout, tensors, held)
    return recognise_masks(without_dead(found.graph), held.tensors)


def forms_of(graph: Graph) -> tuple[str, ...]:
    """The forms that a graph has: where nothing repeats, one."""
    return tuple(form for form, missing in available(graph).items() if not missing)


def plan_form(
    chip: Chip,
    device: Any,
    module: nn.Module,
    graph: Graph,
    optimizer: torch.optim.Optimizer,
    form: str,
    matmul: str = "highest",
) -> dict[str, int]:
    """The plan (``plan_on``) of the whole training step in one form."""
    rule = trace(optimizer, module.named_parameters())
    looped = roll(graph) if FORMS[form].rolled else None
    shaped = shape(graph, FORMS[form], alike_of(rule), looped)
    stacks = {s.name: s.members for s in shaped.stacks.rows}
    program = Program(shaped.graph, matmul, stacks, connected(graph), shaped.form.inside)
    with torch_numerics(matmul):
        leaves = _shapes(module)
        hyper = rule.hyper(optimizer)
        state = jax.eval_shape(lambda p: rule.init(p, hyper), {n: leaves[n] for n in rule.programs})
        values, state = shaped.stacks.join(leaves, _stack), shaped.stacks.join(state, _stack)
        names = tuple(n for n in program.connected if program.members(n)[0] in rule.programs)
        own = tuple(dict.fromkeys((*names, *program.written)))
        fixed = {n: values[n] for n in program.reads if n not in own} | _large(program)
        number = jax.ShapeDtypeStruct((), jnp.uint32)
        arguments = ({n: values[n] for n in own}, state, fixed, _batch(graph), hyper, number, number)
        step = jax.jit(program.update(rule, names), donate_argnums=(0, 1))
        return plan_on(chip, device, step, *arguments)


def plan_region(
    chip: Chip,
    device: Any,
    module: nn.Module,
    graph: Graph,
    gradient: bool,
    batch_gradients: Sequence[int] = (),
    matmul: str = "highest",
) -> dict[str, int]:
    """The plan of the loss alone, or of it and its gradients: by the parameters, and by the batch's tensors at these
    places."""
    program = Program(graph, matmul)
    run = function_of(program, gradient, {i: str(i) for i in batch_gradients})
    with torch_numerics(matmul):
        leaves = _shapes(module)
        values = {n: leaves[n] for n in program.reads} | _large(program)
        return plan_on(chip, device, jax.jit(run), values, _batch(graph))


def _shapes(module: nn.Module) -> dict[str, Any]:
    return shapes_of(dict((*module.named_parameters(), *module.named_buffers())))


def _stack(rows: list[Any]) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((len(rows), *a.shape), a.dtype), rows[0])


def _large(program: Program) -> dict[str, Any]:
    return {n: shape_of(v) for n, v in program.large.items()}


def _batch(graph: Graph) -> list[Any]:
    return [
        jax.ShapeDtypeStruct(i.aval.shape, jnp.dtype(i.aval.dtype)) for i in graph.inputs if i.kind == "batch"
    ]


def plans(running: Any, chip: Chip, device: Any, batch: Any) -> Iterator[tuple[str, dict[str, int]]]:
    """``(form, plan)`` of a running of the bridge; ``batch`` by name, as numpy's."""
    tensors = {n: torch.from_numpy(a) for n, a in batch.items()}
    given = {n: t.to(running.dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    whole = running.loss_and_outputs()
    region = running.contract.region
    if region == "train-step":
        graph = captured(running.module, lambda m, b: whole(m, b)[0], given)
        for form in forms_of(graph):
            yield (
                form,
                plan_form(chip, device, running.module, graph, running.optimizer, form, running.matmul),
            )
        return
    graph = captured(running.module, whole, given)
    at = [i for i, name in enumerate(given) if name in running.workload.batch_gradients]
    yield (
        "unrolled",
        plan_region(chip, device, running.module, graph, region == "gradient", at, running.matmul),
    )
