"""Compulsory memory traffic: what no implementation can avoid, however it fuses."""

from __future__ import annotations

# How often every element of a parameter must cross the memory bus, by region or contract name. ``gradient``
# reads the parameter and writes its gradient. An AdamW step reads and writes parameter, first and second moment;
# its gradient is an intermediate value that a fused program never stores. SGD with momentum keeps one moment.
PARAMETER_PASSES: dict[str, int] = {
    "forward": 1,
    "gradient": 2,
    "train-step": 6,
    "train-step-sgd": 4,
}


def parameter_traffic(count: int, region: str, element: int) -> int:
    """Bytes that ``count`` parameters of ``element`` bytes cost in one step of ``region``.

    ``region`` is a contract's region, or a contract's name where the optimizer matters. Raises KeyError on
    another.
    """
    return count * element * PARAMETER_PASSES[region]


def backward_products(region: str) -> int:
    """How many products of its size one product costs when both of its operands need a gradient: 1 or 3."""
    return 1 if region == "forward" else 3
