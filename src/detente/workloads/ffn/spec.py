"""Shapes, batches and costs of ``ffn``."""

from __future__ import annotations

import numpy as np

from detente.workloads.costs import Product, Work, affine, flops, largest
from detente.workloads.traffic import step_traffic
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
    return affine(size["hidden"], size["inner"]) + affine(size["inner"], size["hidden"])


def work(size: Size, region: str) -> list[Work]:
    """Two products of equal cost. ``gradient`` includes the gradient of x, as inside a network; a train step of this
    block alone has no use for it."""
    tokens, h, inner = size["batch"] * size["sequence"], size["hidden"], size["inner"]
    return [Product(tokens, h, inner, data=region != "gradient"), Product(tokens, inner, h)]


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes: x and target read; ``forward`` writes y, ``gradient`` x's gradient."""
    tensor = size["batch"] * size["sequence"] * size["hidden"]
    written = {"forward": tensor, "gradient": tensor}
    return step_traffic(
        region, parameter, activation, parameters=parameters(size), read=2 * tensor, written=written
    )


WORKLOAD = Workload(
    name="ffn",
    what="the feed-forward block of GPT-2: linear, tanh-GELU, linear",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.ffn.in_torch", "flax": "detente.workloads.ffn.in_flax"},
    batch=batch,
    flops=lambda size, region: flops(work(size, region), region),
    bytes=traffic,
    products=lambda size: largest(work(size, "forward")),
    parameters=parameters,
    contracts=("gradient", "train-step", "train-step-sgd", "forward"),
    batch_gradients=("x",),
    source="Radford et al. 2019, GPT-2 Small: 768 to 3072 and back, over 4 x 256 tokens",
)
