"""Shapes, batches and costs of ``mha``."""

from __future__ import annotations

import numpy as np

from detente.workloads.constraints import divides
from detente.workloads.costs import Product, Work, affine, attention, flops, largest
from detente.workloads.traffic import step_traffic
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
    return 4 * affine(size["hidden"], size["hidden"])


def work(size: Size, region: str) -> list[Work]:
    """The projections to query, key, value and back, and the two products of attention. ``gradient`` includes the
    gradient of x, as inside a network; a train step of this block alone has no use for it."""
    b, t, h, heads = (size[d] for d in ("batch", "sequence", "hidden", "heads"))
    inward = Product(b * t, h, 3 * h, data=region != "gradient")
    return [inward, Product(b * t, h, h), *attention(b, heads, t, h // heads)]


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes: x and target read; ``forward`` writes y, ``gradient`` x's gradient."""
    tensor = size["batch"] * size["sequence"] * size["hidden"]
    written = {"forward": tensor, "gradient": tensor}
    return step_traffic(
        region, parameter, activation, parameters=parameters(size), read=2 * tensor, written=written
    )


WORKLOAD = Workload(
    name="mha",
    what="the causal multi-head self-attention of GPT-2, projections included",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.mha.in_torch", "flax": "detente.workloads.mha.in_flax"},
    batch=batch,
    flops=lambda size, region: flops(work(size, region), region),
    bytes=traffic,
    products=lambda size: largest(work(size, "forward")),
    parameters=parameters,
    constraints=(divides("heads", "hidden"),),
    contracts=("gradient", "train-step", "train-step-sgd", "forward"),
    batch_gradients=("x",),
    source="Radford et al. 2019, GPT-2 Small: 12 heads of 64, over 4 x 256 tokens",
)
