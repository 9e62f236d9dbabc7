"""Shapes, batches and costs of ``bert``."""

from __future__ import annotations

import numpy as np

from detente.workloads.batches import labelled_sentences
from detente.workloads.constraints import at_least, divides, within
from detente.workloads.costs import Product, Work, affine, attention, flops, largest
from detente.workloads.overrides import with_layers
from detente.workloads.traffic import step_traffic
from detente.workloads.workload import OptimizerSettings, Size, Workload

# As float32 holds it, for torch_xla: see gpt2/spec.py.
EPSILON = float(np.float32(1e-12))

SIZES = {
    # Four rows: see llama/spec.py.
    "tiny": Size(
        "tiny",
        {
            "layers": 2,
            "hidden": 32,
            "heads": 4,
            "inner": 64,
            "vocab": 128,
            "positions": 32,
            "types": 2,
            "labels": 3,
            "batch": 4,
            "sequence": 16,
        },
    ),
    "paper": Size(
        "paper",
        {
            "layers": 12,
            "hidden": 768,
            "heads": 12,
            "inner": 3072,
            "vocab": 30522,
            "positions": 512,
            "types": 2,
            "labels": 2,
            "batch": 4,
            "sequence": 64,
        },
    ),
}


def parameters(size: Size) -> int:
    h, inner = size["hidden"], size["inner"]
    layer = 4 * affine(h, h) + affine(h, inner) + affine(inner, h) + 2 * 2 * h
    tables = (size["vocab"] + size["positions"] + size["types"]) * h + 2 * h
    return tables + size["layers"] * layer + affine(h, h) + affine(h, size["labels"])


def work(size: Size) -> list[Work]:
    """Per layer four projections, the two products of attention and the feed-forward pair; then the pooler and the
    classifier, of the first token alone."""
    b, t, h, heads, inner = (size[d] for d in ("batch", "sequence", "hidden", "heads", "inner"))
    layers = size["layers"]
    return [
        Product(b * t, h, inner, times=layers),
        Product(b * t, inner, h, times=layers),
        Product(b * t, h, h, times=4 * layers),
        *(layers * attention(b, heads, t, h // heads)),
        Product(b, h, h),
        Product(b, h, size["labels"]),
    ]


def unread(size: Size) -> int:
    """Elements of the tables' rows that a batch does not look up, however many different tokens it has; every token is
    of one type."""
    rows = max(0, size["vocab"] - size["batch"] * size["sequence"])
    return (rows + size["positions"] - size["sequence"] + size["types"] - 1) * size["hidden"]


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes: tokens and labels read; ``forward`` writes the logits."""
    return step_traffic(
        region,
        parameter,
        activation,
        parameters=parameters(size),
        integers=size["batch"] * (size["sequence"] + 1),
        written={"forward": size["batch"] * size["labels"]},
        unread=unread(size),
    )


WORKLOAD = Workload(
    name="bert",
    what="BERT, an encoder that classifies sentences (transformers' BertForSequenceClassification)",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.bert.in_torch", "flax": "detente.workloads.bert.in_flax"},
    batch=labelled_sentences,
    flops=lambda size, region: flops(work(size), region),
    bytes=traffic,
    products=lambda size: largest(work(size)),
    layers=lambda size: size["layers"],
    cut=with_layers(2),
    parameters=parameters,
    # One label would be a regression to transformers.
    constraints=(divides("heads", "hidden"), within("sequence", "positions"), at_least("labels", 2)),
    # The largest rate of the paper's own fine-tuning. At 1e-3 a tiny BERT knows its four batches by heart within a
    # thousand steps; what is left of its gradients then is mostly rounding, and a fair row was void for it.
    optimizer=OptimizerSettings(lr=5e-5),
    source="Devlin et al. 2018, BERT-Base: the default BertConfig of transformers, dropout 0, 4 x 64 tokens",
)
