"""Which Python scalars of which operators may become traced values.

Layers that differ only in such a scalar (a stochastic-depth rate, the slope of ALiBi, a scale of
``1 / (layer + 1)``) are still one loop: the scalar becomes an input stacked over the iterations.
A row belongs here only when ATen's result shape and dtype do not depend on the scalar's value and the
lowering has no Python branch on it; tests/bridge/roll/test_scalars.py runs every row both ways.
"""

from __future__ import annotations

from typing import Any

from detente.bridge.graph import Node

# operator -> positions (int) or keywords (str) whose scalar may be traced
LIFTABLE: dict[str, tuple[int | str, ...]] = {
    "aten.add.Tensor": (0, 1),
    "aten.add.Scalar": (1,),
    "aten.sub.Tensor": (0, 1),
    "aten.sub.Scalar": (1,),
    "aten.rsub.Scalar": (1,),
    "aten.mul.Tensor": (0, 1),
    "aten.mul.Scalar": (1,),
    "aten.div.Tensor": (0, 1),
    "aten.div.Scalar": (1,),
    "aten.masked_fill.Scalar": (2,),
}


def liftable(node: Node, where: int | str, value: Any) -> bool:
    """Whether the literal ``value`` at position or keyword ``where`` of ``node`` may become a traced scalar.

    >>> from detente.bridge.graph import Aval
    >>> liftable(Node(0, "aten.mul.Scalar", (), (), Aval((), "float32")), 1, 0.5)
    True
    """
    # bool is an int in Python but no scalar of arithmetic in ATen
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and where in LIFTABLE.get(node.op, ())
    )
