"""Shapes, batches and costs of ``mha``."""

from __future__ import annotations

from detente.workloads.batches import hidden_states
from detente.workloads.constraints import divides
from detente.workloads.costs import Product, Work, affine, attention, flops, largest, least_flops
from detente.workloads.traffic import of_hidden_states
from detente.workloads.workload import Size, Workload

SIZES = {
    "tiny": Size("tiny", {"hidden": 32, "heads": 4, "batch": 2, "sequence": 8}),
    "paper": Size("paper", {"hidden": 768, "heads": 12, "batch": 4, "sequence": 256}),
}


def parameters(size: Size) -> int:
    return 4 * affine(size["hidden"], size["hidden"])


def work(size: Size, region: str) -> list[Work]:
    """The projections to query, key, value and back, and the two products of attention. ``gradient`` includes the
    gradient of x, as inside a network; a train step of this block alone has no use for it."""
    b, t, h, heads = (size[d] for d in ("batch", "sequence", "hidden", "heads"))
    inward = Product(b * t, h, 3 * h, data=region != "gradient")
    return [inward, Product(b * t, h, h), *attention(b, heads, t, h // heads, causal=True)]


WORKLOAD = Workload(
    name="mha",
    what="the causal multi-head self-attention of GPT-2, projections included",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.mha.in_torch", "flax": "detente.workloads.mha.in_flax"},
    batch=hidden_states,
    flops=lambda size, region: flops(work(size, region), region),
    least_flops=lambda size, region: least_flops(work(size, region), region),
    bytes=of_hidden_states(parameters),
    products=lambda size: largest(work(size, "forward")),
    parameters=parameters,
    constraints=(divides("heads", "hidden"),),
    contracts=("gradient", "train-step", "train-step-sgd", "forward"),
    batch_gradients=("x",),
    source="Radford et al. 2019, GPT-2 Small: 12 heads of 64, over 4 x 256 tokens",
)
