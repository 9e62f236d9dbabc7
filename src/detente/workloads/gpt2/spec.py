"""Shapes, batches and costs of ``gpt2``."""

from __future__ import annotations

import numpy as np

from detente.workloads.batches import tokens
from detente.workloads.constraints import divides, within
from detente.workloads.costs import Product, Work, attention, flops, largest, least_flops
from detente.workloads.overrides import with_layers
from detente.workloads.traffic import of_tokens, positions_unread
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
    return [
        *projections,
        *(layers * attention(size["batch"], size["heads"], t, h // size["heads"], causal=True)),
        head,
    ]


WORKLOAD = Workload(
    name="gpt2",
    what="GPT-2, a decoder-only language model (transformers' GPT2LMHeadModel)",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.gpt2.in_torch", "flax": "detente.workloads.gpt2.in_flax"},
    batch=tokens,
    flops=lambda size, region: flops(work(size), region),
    least_flops=lambda size, region: least_flops(work(size), region),
    bytes=of_tokens(parameters, positions_unread),
    products=lambda size: largest(work(size)),
    layers=lambda size: size["layers"],
    cut=with_layers(2),
    parameters=parameters,
    constraints=(divides("heads", "hidden"), within("sequence", "positions")),
    source="Radford et al. 2019, GPT-2 Small: the default GPT2Config of transformers, dropout 0",
)
