"""Shapes, batches and costs of ``mha``."""

from __future__ import annotations

import numpy as np

from detente.workloads.traffic import backward_products, parameter_traffic
from detente.workloads.workload import Size, Workload

SIZES = {
    "tiny": Size("tiny", {"hidden": 32, "heads": 4, "batch": 2, "sequence": 8}),
    "paper": Size("paper", {"hidden": 768, "heads": 12, "batch": 4, "sequence": 256}),
}


def batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """``x`` and ``target``, both (batch, sequence, hidden) float32 from a standard normal."""
    shape = (size["batch"], size["sequence"], size["hidden"])
    return {name: rng.standard_normal(shape, dtype=np.float32) for name in ("x", "target")}


def parameters(size: Size) -> int:
    return 4 * size["hidden"] ** 2 + 4 * size["hidden"]


def flops(size: Size, region: str) -> int:
    """The projections to query, key, value and back, and the two products of attention over the *full* square of
    positions, as the definition of masked attention forms them. ``gradient`` includes the gradient of x, as inside
    a network; a train step of this block alone has no use for it."""
    h, t = size["hidden"], size["sequence"]
    tokens = size["batch"] * t
    inward, outward, attention = 2 * tokens * h * 3 * h, 2 * tokens * h * h, 2 * (2 * tokens * t * h)
    total = (inward + outward + attention) * backward_products(region)
    return total - inward if region.startswith("train-step") else total


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes. Parameters by region (traffic.py); x and target read; ``forward`` writes y, ``gradient`` x's
    gradient."""
    tensor = size["batch"] * size["sequence"] * size["hidden"] * activation
    tensors = 3 if region in ("forward", "gradient") else 2
    return parameter_traffic(parameters(size), region, parameter) + tensors * tensor


WORKLOAD = Workload(
    name="mha",
    what="the causal multi-head self-attention of GPT-2, projections included",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.mha.in_torch", "flax": "detente.workloads.mha.in_flax"},
    batch=batch,
    flops=flops,
    bytes=traffic,
    products=lambda size: (size["batch"] * size["sequence"], size["hidden"], 3 * size["hidden"]),
    contracts=("gradient", "train-step", "train-step-sgd", "forward"),
    batch_gradients=("x",),
    source="Radford et al. 2019, GPT-2 Small: 12 heads of 64, over 4 x 256 tokens",
)
