"""Shapes, batches and costs of ``gpt2``."""

from __future__ import annotations

import numpy as np

from detente.workloads.constraints import divides, within
from detente.workloads.costs import Product, Work, attention, flops, largest
from detente.workloads.traffic import step_traffic
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


def work(size: Size) -> list[Work]:
    """Per layer the projections and the two products of attention; then the output projection of every position.
    Lookups cost nothing, and embeddings are trained: every operand of every product needs its gradient."""
    h, t = size["hidden"], size["sequence"]
    tokens, layers = size["batch"] * t, size["layers"]
    shapes = ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h))
    projections = [Product(tokens, k, n, times=layers) for k, n in shapes]
    head = Product(tokens, h, size["vocab"])
    return [*projections, *(layers * attention(size["batch"], size["heads"], t, h // size["heads"])), head]


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes: tokens read, ``forward`` writes the logits; of the positions only the rows in use are read."""
    tokens = size["batch"] * size["sequence"]
    return step_traffic(
        region,
        parameter,
        activation,
        parameters=parameters(size),
        integers=tokens,
        written={"forward": tokens * size["vocab"]},
        unread=(size["positions"] - size["sequence"]) * size["hidden"],
    )


WORKLOAD = Workload(
    name="gpt2",
    what="GPT-2, a decoder-only language model (transformers' GPT2LMHeadModel)",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.gpt2.in_torch", "flax": "detente.workloads.gpt2.in_flax"},
    batch=batch,
    flops=lambda size, region: flops(work(size), region),
    bytes=traffic,
    products=lambda size: largest(work(size)),
    layers=lambda size: size["layers"],
    parameters=parameters,
    constraints=(divides("heads", "hidden"), within("sequence", "positions")),
    source="Radford et al. 2019, GPT-2 Small: the default GPT2Config of transformers, dropout 0",
)
