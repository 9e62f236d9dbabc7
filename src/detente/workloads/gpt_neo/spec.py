"""Shapes, batches and costs of ``gpt_neo``."""

from __future__ import annotations

import numpy as np

from detente.workloads.batches import tokens
from detente.workloads.constraints import divides, multiple, within
from detente.workloads.costs import Product, Work, affine, attention, flops, largest, least_flops
from detente.workloads.overrides import with_layers
from detente.workloads.traffic import of_tokens, positions_unread
from detente.workloads.workload import OptimizerSettings, Size, Workload

# As float32 holds it, for torch_xla: see gpt2/spec.py.
EPSILON = float(np.float32(1e-5))

SIZES = {
    # The window is shorter than the sequence, so that the two kinds of layers differ. Four rows: see llama/spec.py.
    "tiny": Size(
        "tiny",
        {
            "layers": 4,
            "hidden": 64,
            "heads": 4,
            "vocab": 256,
            "positions": 32,
            "window": 5,
            "batch": 4,
            "sequence": 16,
        },
    ),
    "paper": Size(
        "paper",
        {
            "layers": 24,
            "hidden": 2048,
            "heads": 16,
            "vocab": 50257,
            "positions": 2048,
            "window": 256,
            "batch": 1,
            "sequence": 128,
        },
    ),
}


def parameters(size: Size) -> int:
    """The output projection is tied to the token embedding and counts once; query, key and value have no bias."""
    h = size["hidden"]
    layer = 3 * h * h + affine(h, h) + affine(h, 4 * h) + affine(4 * h, h) + 2 * 2 * h
    return (size["vocab"] + size["positions"]) * h + size["layers"] * layer + 2 * h


def work(size: Size) -> list[Work]:
    """Per layer four projections, the two products of attention and the feed-forward pair; then the output projection
    of every position. A local layer masks the same full square as a global one, as the model forms it."""
    b, t, h, heads, layers = (size[d] for d in ("batch", "sequence", "hidden", "heads", "layers"))
    return [
        Product(b * t, h, size["vocab"]),
        Product(b * t, h, 4 * h, times=layers),
        Product(b * t, 4 * h, h, times=layers),
        Product(b * t, h, h, times=4 * layers),
        *(layers // 2 * attention(b, heads, t, h // heads, causal=True)),
        *(layers // 2 * attention(b, heads, t, h // heads, causal=True, window=size["window"])),
    ]


WORKLOAD = Workload(
    name="gpt_neo",
    what="GPT-Neo, a language model with global and local attention in turns (transformers' GPTNeoForCausalLM)",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.gpt_neo.in_torch", "flax": "detente.workloads.gpt_neo.in_flax"},
    batch=tokens,
    flops=lambda size, region: flops(work(size), region),
    least_flops=lambda size, region: least_flops(work(size), region),
    bytes=of_tokens(parameters, positions_unread),
    products=lambda size: largest(work(size)),
    layers=lambda size: size["layers"],
    cut=with_layers(4),
    parameters=parameters,
    # Layers take turns, so they come in pairs.
    constraints=(divides("heads", "hidden"), multiple("layers", 2), within("sequence", "positions")),
    # Of the configuration that the 1.3B model was trained with.
    optimizer=OptimizerSettings(lr=2e-4),
    source="Black et al. 2021, GPT-Neo 1.3B: the default GPTNeoConfig of transformers, dropout 0, 1 x 128 tokens",
)
