"""OpInfo samples, and one sample run on both sides.

Reference: torch eager on the CPU, forward and gradient (a fixed cotangent per output). Ours: the sample's graph
through the table, forward and vjp in one jitted program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from detente.bridge.graph import Graph, Node
from detente.bridge.lower.driver import Trace, evaluate, load_table
from detente.bridge.lower.faults import NO_FAULT, Sites
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.lower.table import TABLE
from opinfo.tracing import graph_of, to_numpy
from tests.quick_xla import OPTIONS
from tests.unfrozen import unfreeze

unfreeze()
load_table()


def title(op: Any) -> str:
    """The name that tests, tolerances and known gaps use: ``nn.functional.gelu``, ``sum``, ``norm.fro``."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


OPS = {title(op): op for op in op_db}


@dataclass(frozen=True)
class Sample:
    """A call with its tensors taken out: ``function(*tensors)`` gives the tensors of the result, in order."""

    function: Callable[..., tuple[torch.Tensor, ...]]
    tensors: tuple[torch.Tensor, ...]
    text: str


def _sample(op: Any, item: Any) -> Sample:
    leaves, spec = tree_flatten((item.input, item.args, item.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        result = item.output_process_fn_grad(op.op(first, *args, **kwargs))
        return tuple(leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor))

    shown = [f"{tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
    return Sample(function, tuple(leaves[i].detach() for i in places), f"({', '.join(shown)})")


def samples(op: Any, dtype: torch.dtype, limit: int | None) -> list[Sample]:
    """The op's samples in ``dtype``; with a limit, that many spread over the first of them."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Not ``op.sample_inputs``: it reseeds torch before every sample and looks for a test on the stack, which takes
        # a third of the whole run. A limited run does not make them all either.
        made = op.sample_inputs_func(op, "cpu", dtype, False)
        items = list(islice(made, None if limit is None else 5 * limit))
    if limit is not None and len(items) > limit:
        items = [items[i * len(items) // limit] for i in range(limit)]
    return [_sample(op, item) for item in items]


def wide(value: np.ndarray) -> np.ndarray:
    """The value in a dtype that numpy computes with exactly enough: float64 or complex128, else itself."""
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        return value.astype(np.complex128)
    return value.astype(np.float64) if jnp.issubdtype(value.dtype, jnp.floating) else value


def differentiable(tensor: torch.Tensor) -> bool:
    """Whether torch can give a gradient for this tensor."""
    return tensor.is_floating_point() or tensor.is_complex()


def cotangent(index: int, like: np.ndarray) -> np.ndarray:
    """A fixed weight per element of output ``index``, not symmetric, in eighths (exact in every dtype)."""
    steps = np.arange(like.size)
    values = np.round(8 * (np.cos(steps * 0.7 + index) + 0.1)) / 8
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        values = values + 1j * np.round(8 * np.sin(steps * 0.3)) / 8
    return values.reshape(like.shape).astype(like.dtype)


@dataclass(frozen=True)
class Run:
    """Outputs, gradients of the float inputs (None where torch gives none), faults that were reported."""

    outputs: tuple[np.ndarray, ...]
    gradients: tuple[np.ndarray | None, ...]
    fault: str = ""
    random: bool = False  # the graph draws random numbers: values differ from torch's generator


def in_torch(sample: Sample, gradient: bool) -> Run:
    """The reference. Gradients are empty when torch cannot differentiate the sample."""
    tensors = [t.clone() for t in sample.tensors]
    if gradient:
        tensors = [t.requires_grad_() if differentiable(t) else t for t in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = sample.function(*tensors)
    values = tuple(to_numpy(o) for o in outputs)
    leaves = [t for t in tensors if t.requires_grad]
    pairs = [
        (o, cotangent(i, v)) for i, (o, v) in enumerate(zip(outputs, values, strict=True)) if o.requires_grad
    ]
    if not pairs or not leaves:
        return Run(values, ())
    weights = [torch.from_numpy(wide(np.asarray(w))).to(o.dtype) for o, w in pairs]
    grads = torch.autograd.grad([o for o, _ in pairs], leaves, weights, allow_unused=True)
    return Run(values, tuple(None if g is None else to_numpy(g) for g in grads))


def in_jax(bundle: Sequence[Sample], references: Sequence[Run]) -> list[Run]:
    """The samples' graph through the table, as one jitted program; gradients where the reference has them.

    A bundle costs one export and one compilation, which is most of a small sample's time.
    """
    graph = _exported(bundle)
    absent = sorted({node.op for node in graph.nodes} - TABLE.keys())
    if absent:
        raise NotLoweredError(", ".join(absent))
    random = any(TABLE[node.op].random and _draws(node) for node in graph.nodes)
    ids = [item.id for item in graph.inputs if item.kind == "batch"]
    sites = Sites()
    tensors = [t for sample in bundle for t in sample.tensors]
    arrays = [to_numpy(t) for t in tensors]
    wanted = [bool(r.gradients) for s, r in zip(bundle, references, strict=True) for _ in s.tensors]
    moving = [i for i, t in enumerate(tensors) if wanted[i] and differentiable(t)]
    firsts = [i for reference in references for i in range(len(reference.outputs))]

    with torch_numerics():

        def forward(floats: list[jax.Array], values: list[jax.Array]) -> Any:
            values = list(values)
            for place, value in zip(moving, floats, strict=True):
                values[place] = value
            trace = Trace(sites, jax.random.key(0))
            outputs = [jnp.asarray(o) for o in evaluate(graph, dict(zip(ids, values, strict=True)), trace)]
            if len(outputs) != len(firsts):
                raise AssertionError(f"{len(outputs)} outputs, torch has {len(firsts)}")
            total = jnp.zeros((), jnp.float64)
            for i, out in zip(firsts, outputs, strict=True):
                if jnp.issubdtype(out.dtype, jnp.inexact):
                    weight = jnp.asarray(cotangent(i, np.empty(out.shape, out.dtype)))
                    total = total + jnp.sum(jnp.real(out * jnp.conj(weight))).astype(jnp.float64)
            return total, (outputs, trace.word())

        def program(floats: list[jax.Array], values: list[jax.Array]) -> Any:
            if moving:
                return jax.value_and_grad(forward, has_aux=True)(floats, values)
            return forward(floats, values), []

        inputs = ([arrays[i] for i in moving], arrays)
        compiled = jax.jit(program).lower(*inputs).compile(OPTIONS)
        (_, (outputs, word)), grads = compiled(*inputs)
    fault = sites.error(int(word)) if int(word) != NO_FAULT else None
    # JAX's gradient of a real function by a complex input is the conjugate of torch's.
    rest, flows = list(map(np.asarray, outputs)), iter([np.conj(np.asarray(g)) for g in grads])
    runs = []
    for sample, reference in zip(bundle, references, strict=True):
        mine, rest = rest[: len(reference.outputs)], rest[len(reference.outputs) :]
        moved = sum(differentiable(t) for t in sample.tensors) if reference.gradients else 0
        runs.append(Run(tuple(mine), tuple(next(flows) for _ in range(moved)), str(fault or ""), random))
    return runs


def _exported(bundle: Sequence[Sample]) -> Graph:
    def together(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest, outputs = tensors, []
        for sample in bundle:
            outputs += sample.function(*rest[: len(sample.tensors)])
            rest = rest[len(sample.tensors) :]
        return tuple(outputs)

    return graph_of(together, [t for sample in bundle for t in sample.tensors])


# Operators that draw only when asked to: where the probability and the switch stand.
_SWITCHED = {
    "aten.native_dropout.default": (1, 2),
    "aten.dropout.default": (1, 2),
    "aten.feature_dropout.default": (1, 2),
    "aten.alpha_dropout.default": (1, 2),
    "aten.feature_alpha_dropout.default": (1, 2),
    "aten.scaled_dot_product_attention.default": (4, None),
    "aten.rrelu.default": (None, 3),
}


def _draws(node: Node) -> bool:
    if node.op not in _SWITCHED:
        return True
    probability, switch = _SWITCHED[node.op]
    named = dict(node.kwargs)
    p = (
        1.0
        if probability is None
        else node.args[probability]
        if len(node.args) > probability
        else named.get("dropout_p", 0)
    )
    on = (
        True
        if switch is None
        else node.args[switch]
        if len(node.args) > switch
        else named.get("training", False)
    )
    return bool(on) and p > 0


class NotLoweredError(Exception):
    """The sample needs operators that the table lacks; the message lists them."""


def every_op() -> Iterator[str]:
    """Names of all of OpInfo, sorted."""
    yield from sorted(OPS)
