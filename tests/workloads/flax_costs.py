"""Count the products of the traced Flax programs, in a process of its own and without running anything.

``python flax_costs.py`` prints {"workload/size/scan": {"forward": ..., "gradient": ..., "train-step": ...,
"parameters": ...}}. The count is independent of the closed forms: it walks the jaxpr.
"""

from __future__ import annotations

import importlib
import json
import math

import jax
import numpy as np
from flax import nnx
from jax.extend import core

from detente.workloads.catalogue import WORKLOADS, find_workload


def taps(rows: int, kernel: int, out: int, stride: int, low: int, spread: int, dilation: int) -> int:
    """Along one axis: pairs of output and kernel position that meet an element, not padding or a dilation's hole."""
    met = 0
    for o in range(out):
        for k in range(kernel):
            at = o * stride + k * dilation - low
            met += 0 <= at <= (rows - 1) * spread and at % spread == 0
    return met


def of_convolution(equation) -> int:
    left, right = (v.aval.shape for v in equation.invars)
    out = equation.outvars[0].aval.shape
    p = equation.params
    numbers = p["dimension_numbers"]
    assert p["feature_group_count"] == p["batch_group_count"] == 1
    met = math.prod(
        taps(left[la], right[ra], out[oa], stride, low, spread, dilation)
        for la, ra, oa, stride, (low, _), spread, dilation in zip(
            numbers.lhs_spec[2:],
            numbers.rhs_spec[2:],
            numbers.out_spec[2:],
            p["window_strides"],
            p["padding"],
            p["lhs_dilation"],
            p["rhs_dilation"],
            strict=True,
        )
    )
    return 2 * left[numbers.lhs_spec[0]] * left[numbers.lhs_spec[1]] * right[numbers.rhs_spec[0]] * met


def of_product(equation) -> int:
    left = equation.invars[0].aval.shape
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)


def count(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        assert name not in ("while", "cond"), f"the count of {name} is not known"
        if name == "dot_general":
            total += of_product(equation)
        elif name == "conv_general_dilated":
            total += of_convolution(equation)
        times = equation.params["length"] if name == "scan" else 1
        for inner in equation.params.values():
            if isinstance(inner, core.ClosedJaxpr):
                total += times * count(inner.jaxpr)
            elif isinstance(inner, core.Jaxpr):
                total += times * count(inner)
    return total


def measure(name: str, size_name: str, scan: bool) -> dict[str, int]:
    workload = find_workload(name)
    size = workload.sizes[size_name]
    definition = importlib.import_module(workload.definitions["flax"])
    module = nnx.eval_shape(
        lambda: definition.build(size, parameters="float32", compute="float32", scan=scan)
    )
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    arrays = workload.batch(size, np.random.default_rng(0))
    batch = {
        n: jax.ShapeDtypeStruct(a.shape, np.int32 if a.dtype == np.int64 else a.dtype)
        for n, a in arrays.items()
    }

    def loss(both, rest, batch):
        module = nnx.merge(graph, both[0], rest, copy=True)
        return definition.loss(module, {**batch, **both[1]})[0]

    def traced(function, wanted):
        return count(jax.make_jaxpr(function)((params, {n: batch[n] for n in wanted}), rest, batch).jaxpr)

    return {
        "forward": traced(loss, ()),
        "gradient": traced(jax.value_and_grad(loss), workload.batch_gradients),
        "train-step": traced(jax.value_and_grad(loss), ()),
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)),
    }


def forms(name: str, size: str) -> tuple[bool, ...]:
    """Which forms of a size are counted: at ``tiny`` the plain one, and the scanned one where layers repeat; at any
    other one, the scanned one where there is one, whose trace is as short as one layer. Nothing is built: of eight
    billion parameters only shapes exist here."""
    workload = find_workload(name)
    repeats = workload.layers(workload.sizes[size]) > 1
    return ((False, True) if repeats else (False,)) if size == "tiny" else (repeats,)


if __name__ == "__main__":
    found = {
        f"{name}/{size}/{scan}": measure(name, size, scan)
        for name in WORKLOADS
        if "flax" in find_workload(name).definitions
        for size in find_workload(name).sizes
        for scan in forms(name, size)
    }
    print(json.dumps(found))
