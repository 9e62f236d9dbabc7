"""Shapes, batches, rotary frequencies and costs of ``llama``."""

from __future__ import annotations

import numpy as np

from detente.workloads.batches import tokens
from detente.workloads.constraints import Constraint, at_most, divides
from detente.workloads.costs import Product, Work, attention, flops, largest, least_flops
from detente.workloads.overrides import with_layers
from detente.workloads.traffic import of_tokens
from detente.workloads.workload import OptimizerSettings, Size, Workload

EPSILON = 1e-5

# Rotary positions of Llama 3.1: the base of the wavelengths, and how those that are long against the context of the
# first training are stretched for a longer one.
BASE = 500_000.0
FACTOR, LOW, HIGH = 8.0, 1.0, 4.0
CONTEXT, LONGEST = 8192, 131_072

SIZES = {
    # Of eight frequencies four stay, one is stretched in part, three wholly. Four rows have the orders in which the
    # reference takes long stretches of a window again; two rows have two, and a fair run was 1.1 times over its bound.
    "tiny": Size(
        "tiny",
        {
            "layers": 2,
            "hidden": 64,
            "heads": 4,
            "key_heads": 2,
            "inner": 128,
            "vocab": 256,
            "batch": 4,
            "sequence": 16,
        },
    ),
    "paper": Size(
        "paper",
        {
            "layers": 32,
            "hidden": 4096,
            "heads": 32,
            "key_heads": 8,
            "inner": 14336,
            "vocab": 128256,
            "batch": 1,
            "sequence": 128,
        },
    ),
}


def inverse_frequencies(depth: int) -> np.ndarray:
    """Radians that one position turns each pair of a head's ``depth`` elements, (depth / 2,) float32: computed in
    float64 and rounded once, so that every framework turns by the same angles. They are constants of the model, which
    transformers keeps in float32 too.

    A frequency base^(-2i/depth) of a wavelength under CONTEXT / HIGH stays; over CONTEXT / LOW it is divided by FACTOR;
    between the two it goes from one to the other in the number of its waves in CONTEXT (Llama 3.1's model card).
    """
    plain = BASE ** (-np.arange(0, depth, 2, dtype=np.float64) / depth)
    waves = CONTEXT * plain / (2 * np.pi)
    kept = np.clip((waves - LOW) / (HIGH - LOW), 0.0, 1.0)
    return (plain * (kept + (1.0 - kept) / FACTOR)).astype(np.float32)


def key_width(size: Size) -> int:
    """Outputs of the projections to keys and to values."""
    return size["key_heads"] * (size["hidden"] // size["heads"])


def parameters(size: Size) -> int:
    """No bias anywhere; the output projection is a table of its own."""
    h = size["hidden"]
    layer = 2 * h * h + 2 * h * key_width(size) + 3 * h * size["inner"] + 2 * h
    return 2 * size["vocab"] * h + size["layers"] * layer + h


def work(size: Size) -> list[Work]:
    """Per layer the projections, of which those to keys and values are narrow, the two products of attention for every
    query head, and the three of the gated feed-forward layer; then the output projection of every position."""
    b, t, h, heads, inner, layers = (
        size[d] for d in ("batch", "sequence", "hidden", "heads", "inner", "layers")
    )
    return [
        Product(b * t, h, size["vocab"]),
        Product(b * t, h, inner, times=2 * layers),
        Product(b * t, inner, h, times=layers),
        Product(b * t, h, h, times=2 * layers),
        Product(b * t, h, key_width(size), times=2 * layers),
        *(layers * attention(b, heads, t, h // heads, causal=True)),
    ]


def unread(size: Size) -> int:
    """Elements of the token table's rows that a batch does not look up, however many different tokens it has."""
    return max(0, size["vocab"] - size["batch"] * size["sequence"]) * size["hidden"]


WORKLOAD = Workload(
    name="llama",
    what="Llama 3.1, a language model with grouped queries and rotary positions (transformers' LlamaForCausalLM)",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.llama.in_torch", "flax": "detente.workloads.llama.in_flax"},
    batch=tokens,
    flops=lambda size, region: flops(work(size), region),
    least_flops=lambda size, region: least_flops(work(size), region),
    bytes=of_tokens(parameters, unread),
    products=lambda size: largest(work(size)),
    layers=lambda size: size["layers"],
    cut=with_layers(2),
    parameters=parameters,
    constraints=(
        divides("heads", "hidden"),
        divides("key_heads", "heads"),
        Constraint(
            lambda d: d["hidden"] // d["heads"] % 2 == 0,
            "hidden / heads must be even: its elements turn in pairs",
        ),
        at_most("sequence", LONGEST),
    ),
    # Of the paper, for 8B.
    optimizer=OptimizerSettings(lr=3e-4),
    source="Grattafiori et al. 2024, Llama 3.1 8B: its published configuration, 1 x 128 tokens",
)
