"""Shapes, batches and costs of ``ffn``."""

from __future__ import annotations

from detente.workloads.batches import hidden_states
from detente.workloads.costs import Product, Work, affine, flops, largest
from detente.workloads.traffic import of_hidden_states
from detente.workloads.workload import Size, Workload

SIZES = {
    "tiny": Size("tiny", {"hidden": 32, "inner": 128, "batch": 2, "sequence": 8}),
    "paper": Size("paper", {"hidden": 768, "inner": 3072, "batch": 4, "sequence": 256}),
}


def parameters(size: Size) -> int:
    return affine(size["hidden"], size["inner"]) + affine(size["inner"], size["hidden"])


def work(size: Size, region: str) -> list[Work]:
    """Two products of equal cost. ``gradient`` includes the gradient of x, as inside a network; a train step of this
    block alone has no use for it."""
    tokens, h, inner = size["batch"] * size["sequence"], size["hidden"], size["inner"]
    return [Product(tokens, h, inner, data=region != "gradient"), Product(tokens, inner, h)]


WORKLOAD = Workload(
    name="ffn",
    what="the feed-forward block of GPT-2: linear, tanh-GELU, linear",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.ffn.in_torch", "flax": "detente.workloads.ffn.in_flax"},
    batch=hidden_states,
    flops=lambda size, region: flops(work(size, region), region),
    bytes=of_hidden_states(parameters),
    products=lambda size: largest(work(size, "forward")),
    parameters=parameters,
    contracts=("gradient", "train-step", "train-step-sgd", "forward"),
    batch_gradients=("x",),
    source="Radford et al. 2019, GPT-2 Small: 768 to 3072 and back, over 4 x 256 tokens",
)
