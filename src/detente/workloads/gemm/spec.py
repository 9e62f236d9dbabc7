"""Shapes, batches and costs of ``gemm``: y = x @ weight, pulled back by a fixed cotangent."""

from __future__ import annotations

import numpy as np

from detente.workloads.costs import Product, flops
from detente.workloads.workload import Size, Workload

SIZES = {
    # Three different extents: a transposed operand cannot go unnoticed.
    "tiny": Size("tiny", {"m": 64, "k": 48, "n": 32}),
    "paper": Size("paper", {"m": 2048, "k": 2048, "n": 2048}),
}


def batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """``x`` (m, k) and the cotangent ``g`` (m, n), both float32 from a standard normal."""
    m, k, n = size["m"], size["k"], size["n"]
    return {
        "x": rng.standard_normal((m, k), dtype=np.float32),
        "g": rng.standard_normal((m, n), dtype=np.float32),
    }


def work(size: Size) -> Product:
    """2mkn for the product; as much again for each operand's gradient."""
    return Product(size["m"], size["k"], size["n"])


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes. Reads x, weight, g; ``forward`` writes y, ``gradient`` the gradients of x and weight."""
    m, k, n = size["m"], size["k"], size["n"]
    read = k * n * parameter + (m * k + m * n) * activation
    written = m * n * activation if region == "forward" else k * n * parameter + m * k * activation
    return read + written


WORKLOAD = Workload(
    name="gemm",
    what="one matrix product, forward and the gradient of both operands",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.gemm.in_torch", "flax": "detente.workloads.gemm.in_flax"},
    batch=batch,
    flops=lambda size, region: flops([work(size)], region),
    bytes=traffic,
    products=lambda size: work(size).shape,
    parameters=lambda size: size["k"] * size["n"],
    contracts=("gradient", "forward"),
    batch_gradients=("x",),
    source="2048 cubed: bound by arithmetic on every device at hand, and small enough for two cores",
)
