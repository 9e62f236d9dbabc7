"""Shapes, batches and costs of ``gpt2``."""

from __future__ import annotations

import numpy as np

from detente.workloads.traffic import backward_products, parameter_traffic
from detente.workloads.workload import Size, Workload

# LayerNorm's 1e-5 as float32 holds it. HLO's batch-norm, in which torch_xla writes a LayerNorm, keeps its epsilon in
# float32 whatever the dtype; in a float64 proof the last digits of 1e-5 alone would be a relative error of 3e-10 in the
# gradients and 2e-9 in the updates (measured; 1e-15 and 2e-12 with this value). Up to float32 nothing changes.
EPSILON = float(np.float32(1e-5))

SIZES = {
    "tiny": Size(
        "tiny",
        {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "positions": 32, "batch": 2, "sequence": 16},
    ),
    "paper": Size(
        "paper",
        {
            "layers": 12,
            "hidden": 768,
            "heads": 12,
            "vocab": 50257,
            "positions": 1024,
            "batch": 2,
            "sequence": 64,
        },
    ),
}


def batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """``input_ids`` (batch, sequence), int64, uniform over the vocabulary; they are also the labels."""
    return {"input_ids": rng.integers(0, size["vocab"], (size["batch"], size["sequence"]), dtype=np.int64)}


def parameters(size: Size) -> int:
    """Number of trainable elements; the output projection is tied to the token embedding and counts once."""
    h = size["hidden"]
    # attention h(3h) + 3h + hh + h, feed-forward h(4h) + 4h + 4hh + h, two LayerNorms of 2h each
    layer = 12 * h * h + 13 * h
    return (size["vocab"] + size["positions"]) * h + size["layers"] * layer + 2 * h


def flops(size: Size, region: str) -> int:
    """Products only. Per layer the four projections (12 hidden^2 per token) and the two products of attention
    over the *full* square of positions, as the definition of masked attention forms them; then the output
    projection of every position. Lookups cost nothing. Every operand of every product needs its gradient:
    embeddings are trained.
    """
    h, t = size["hidden"], size["sequence"]
    tokens = size["batch"] * t
    layer = 2 * tokens * 12 * h * h + 2 * (2 * tokens * t * h)
    head = 2 * tokens * h * size["vocab"]
    return (size["layers"] * layer + head) * backward_products(region)


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes. Parameters by region (traffic.py), 4 bytes per token read; ``forward`` writes the logits and reads
    of the position embedding only the rows in use.
    """
    tokens = size["batch"] * size["sequence"]
    total = 4 * tokens + parameter_traffic(parameters(size), region, parameter)
    if region == "forward":
        total += tokens * size["vocab"] * activation
        total -= (size["positions"] - size["sequence"]) * size["hidden"] * parameter
    return total


WORKLOAD = Workload(
    name="gpt2",
    what="GPT-2, a decoder-only language model (transformers' GPT2LMHeadModel)",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.gpt2.in_torch", "flax": "detente.workloads.gpt2.in_flax"},
    batch=batch,
    flops=flops,
    bytes=traffic,
    products=lambda size: (size["batch"] * size["sequence"], size["hidden"], size["vocab"]),
    layers=lambda size: size["layers"],
    source="Radford et al. 2019, GPT-2 Small: the default GPT2Config of transformers, dropout 0",
)
