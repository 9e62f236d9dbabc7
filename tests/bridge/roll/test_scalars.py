"""Every operator of the table of liftable scalars computes the same with the scalar traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref
from detente.bridge.lower.driver import Trace, evaluate
from detente.bridge.lower.faults import Sites
from detente.bridge.lower.precision import x64
from detente.bridge.roll.scalars import LIFTABLE, liftable

ROWS = [(op, where) for op, places in LIFTABLE.items() for where in places]


def arguments(op: str, where: int | str, scalar: Any) -> tuple[Any, ...]:
    """The operator's arguments with ``scalar`` at ``where`` and the tensor (and its mask) elsewhere."""
    count = 3 if op.startswith("aten.masked_fill") else 2
    tensors = iter([Ref(0), Ref(1)])
    return tuple(scalar if k == where else next(tensors) for k in range(count))


@pytest.mark.parametrize(("op", "where"), ROWS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_traced_and_written_scalars_agree(op: str, where: int | str, dtype: str) -> None:
    scalar, x = 0.3, torch.randn(5, dtype=getattr(torch, dtype))
    mask = torch.tensor([True, False, True, True, False])
    name, overload = op.removeprefix("aten.").split(".")
    given = [{Ref(0): x, Ref(1): mask}.get(a, a) for a in arguments(op, where, scalar)]
    torch_op = getattr(getattr(torch.ops.aten, name), overload)
    if not isinstance(given[0], torch.Tensor):  # in torch's default float32, 0.3 alone would be off by 1e-8
        given[0] = torch.tensor(given[0], dtype=torch.float64)
    out = torch_op(*given)
    aval = Aval((5,), str(out.dtype).removeprefix("torch."))
    inputs = (
        Input(0, "batch", "x", Aval((5,), dtype)),
        Input(1, "batch", "mask", Aval((5,), "bool")),
        Input(2, "scalar", "", Aval((), "float64")),
    )

    def graph(value: Any) -> Graph:
        node = Node(3, op, arguments(op, where, value), (), aval)
        return Graph(inputs, (node,), (Output("loss", "", Ref(3)),))

    with x64():
        array = jnp.asarray(x.float().numpy() if dtype == "bfloat16" else x.numpy(), dtype)

        def run(graph: Graph, number: Any) -> Any:
            return evaluate(graph, {0: array, 1: jnp.asarray(mask.numpy()), 2: number}, Trace(Sites()))[0]

        traced = jax.jit(lambda s: run(graph(Ref(2)), s))(jnp.float64(scalar))
        written = jax.jit(lambda s: run(graph(scalar), s))(jnp.float64(scalar))
    # one unit in the last place: XLA turns a division by a written number into a product with its inverse
    unit = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(
        np.asarray(traced, np.float64), np.asarray(written, np.float64), rtol=unit, atol=0
    )
    if dtype != "bfloat16":
        np.testing.assert_allclose(np.asarray(traced), out.numpy(), rtol=1e-6)


def test_what_is_no_scalar_of_arithmetic_is_never_lifted() -> None:
    node = Node(0, "aten.mul.Scalar", (Ref(1), True), (), Aval((), "float32"))
    assert not liftable(node, 1, True)
    assert not liftable(node, 1, Ref(3))
    assert not liftable(Node(0, "aten.sum.dim_IntList", (Ref(1), 1), (), Aval((), "float32")), 1, 1)
