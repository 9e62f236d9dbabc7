"""Shapes, batches and costs of ``ffn``."""

from __future__ import annotations

import numpy as np

from detente.workloads.traffic import parameter_traffic
from detente.workloads.workload import Size, Workload

SIZES = {
    "tiny": Size("tiny", {"hidden": 32, "inner": 128, "batch": 2, "sequence": 8}),
    "paper": Size("paper", {"hidden": 768, "inner": 3072, "batch": 4, "sequence": 256}),
}


def batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """``x`` and ``target``, both (batch, sequence, hidden) float32 from a standard normal."""
    shape = (size["batch"], size["sequence"], size["hidden"])
    return {name: rng.standard_normal(shape, dtype=np.float32) for name in ("x", "target")}


def parameters(size: Size) -> int:
    return 2 * size["hidden"] * size["inner"] + size["inner"] + size["hidden"]


def flops(size: Size, region: str) -> int:
    """Two products of equal cost. ``gradient`` includes the gradient of x, as inside a network; a train step of
    this block alone has no use for it."""
    product = 2 * size["batch"] * size["sequence"] * size["hidden"] * size["inner"]
    return product * {"forward": 2, "gradient": 6, "train-step": 5, "train-step-sgd": 5}[region]


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes. Parameters by region (traffic.py); x and target read; ``forward`` writes y, ``gradient`` x's
    gradient."""
    tensor = size["batch"] * size["sequence"] * size["hidden"] * activation
    tensors = 3 if region in ("forward", "gradient") else 2
    return parameter_traffic(parameters(size), region, parameter) + tensors * tensor


WORKLOAD = Workload(
    name="ffn",
    what="the feed-forward block of GPT-2: linear, tanh-GELU, linear",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.ffn.in_torch", "flax": "detente.workloads.ffn.in_flax"},
    batch=batch,
    flops=flops,
    bytes=traffic,
    products=lambda size: (size["batch"] * size["sequence"], size["hidden"], size["inner"]),
    contracts=("gradient", "train-step", "train-step-sgd", "forward"),
    batch_gradients=("x",),
    source="Radford et al. 2019, GPT-2 Small: 768 to 3072 and back, over 4 x 256 tokens",
)
