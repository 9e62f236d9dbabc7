"""Shapes, batches and costs of ``vit``."""

from __future__ import annotations

import numpy as np

from detente.workloads.batches import labelled_pictures
from detente.workloads.constraints import at_least, divides
from detente.workloads.costs import Convolution, Product, Work, affine, attention, flops, largest
from detente.workloads.overrides import with_layers
from detente.workloads.traffic import of_labelled_pictures
from detente.workloads.workload import Size, Workload

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
            "image": 16,
            "patch": 8,
            "labels": 10,
            "batch": 4,
        },
    ),
    "paper": Size(
        "paper",
        {
            "layers": 12,
            "hidden": 768,
            "heads": 12,
            "inner": 3072,
            "image": 224,
            "patch": 16,
            "labels": 1000,
            "batch": 2,
        },
    ),
}


def tokens(size: Size) -> int:
    """Positions of one picture: its patches, and the class token before them."""
    return (size["image"] // size["patch"]) ** 2 + 1


def parameters(size: Size) -> int:
    h, inner = size["hidden"], size["inner"]
    layer = 4 * affine(h, h) + affine(h, inner) + affine(inner, h) + 2 * 2 * h
    embeddings = affine(3 * size["patch"] ** 2, h) + h + tokens(size) * h
    return embeddings + size["layers"] * layer + 2 * h + affine(h, size["labels"])


def work(size: Size) -> list[Work]:
    """The patches, of pictures that need no gradient; per layer four projections, the two products of attention and
    the feed-forward pair; the classifier, of the class token alone."""
    b, h, heads, inner, layers = (size[d] for d in ("batch", "hidden", "heads", "inner", "layers"))
    t, patch = tokens(size), size["patch"]
    return [
        Convolution(size["image"], 3, h, kernel=patch, stride=patch, batch=b, data=True),
        Product(b * t, h, inner, times=layers),
        Product(b * t, inner, h, times=layers),
        Product(b * t, h, h, times=4 * layers),
        *(layers * attention(b, heads, t, h // heads)),
        Product(b, h, size["labels"]),
    ]


WORKLOAD = Workload(
    name="vit",
    what="ViT, an encoder that classifies pictures (transformers' ViTForImageClassification)",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.vit.in_torch", "flax": "detente.workloads.vit.in_flax"},
    batch=labelled_pictures,
    flops=lambda size, region: flops(work(size), region),
    bytes=of_labelled_pictures(parameters),
    products=lambda size: largest(work(size)),
    layers=lambda size: size["layers"],
    cut=with_layers(2),
    parameters=parameters,
    # One label would be a regression to transformers.
    constraints=(divides("heads", "hidden"), divides("patch", "image"), at_least("labels", 2)),
    source="Dosovitskiy et al. 2020, ViT-B/16: the default ViTConfig of transformers, 1000 labels, 2 x 224 x 224",
)
