"""Second names: ``torch.multiply`` is ``torch.mul``. Each overload of an alias takes the entry of the same overload."""

from __future__ import annotations

from detente.bridge.lower.ops import arithmetic, matmul, pointwise, reduce, select, shape
from detente.bridge.lower.table import TABLE, lowers

# The families whose entries must be registered before their aliases.
NEEDS = (arithmetic, matmul, pointwise, reduce, select, shape)

ALIASES = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "subtract": "sub",
    "concat": "cat",
    "concatenate": "cat",
}


def _register() -> None:
    for alias, name in ALIASES.items():
        for op in [op for op in TABLE if op.startswith(f"aten.{name}.")]:
            other = f"aten.{alias}.{op.rsplit('.', 1)[1]}"
            if other not in TABLE:
                lowers(other)(TABLE[op].lower)


_register()
