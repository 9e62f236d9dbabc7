"""Shapes, batches and costs of ``resnet50``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from detente.workloads.batches import labelled_pictures
from detente.workloads.constraints import Constraint, Dims, at_least, multiple
from detente.workloads.costs import Convolution, Product, Work, affine, flops, largest
from detente.workloads.traffic import of_labelled_pictures
from detente.workloads.workload import Size, Workload

# Inputs of a block to its narrow middle.
REDUCTION = 4

# Neighbouring pixels of a picture are alike. In white noise hardly a window of the max-pool is all negative (1 in 512),
# so that the ReLU before it does nothing, the normalisations behind it take every shift away, and the bias of a
# channel of the stem has a gradient of mathematical zero. AdamW makes updates of its rounding: of white noise at
# ``tiny`` eager PyTorch itself differed by 4e-9 in float64 when the rows of a batch were turned.
GRAIN = 8

SIZES = {
    # Small, because a ReLU within rounding of its kink flips (resnet/spec.py): of 400 fair fp32 pairs at this size two
    # had a flip, and the reference had it too; none was beyond the proof's limit.
    "tiny": Size(
        "tiny",
        {"stem": 8, "width": 16, "depth_1": 1, "depth_2": 2, "labels": 10, "image": 32, "batch": 4},
    ),
    "paper": Size(
        "paper",
        {
            "stem": 64,
            "width": 256,
            "depth_1": 3,
            "depth_2": 4,
            "depth_3": 6,
            "depth_4": 3,
            "labels": 1000,
            "image": 224,
            "batch": 4,
        },
    ),
}


@dataclass(frozen=True)
class Block:
    """One bottleneck: ``inputs`` channels to ``outputs``, a shortcut of its own where the shape changes."""

    inputs: int
    outputs: int
    stride: int

    @property
    def middle(self) -> int:
        return self.outputs // REDUCTION

    @property
    def projects(self) -> bool:
        return self.stride != 1 or self.inputs != self.outputs


def depths(size: Size) -> list[int]:
    """Blocks of each stage."""
    return _depths(size.dims)


def _depths(dims: Dims) -> list[int]:
    return [count for dim, count in dims.items() if dim.startswith("depth_")]


def widths(size: Size) -> list[int]:
    """Channels that each stage puts out: they double from stage to stage."""
    return [size["width"] << stage for stage in range(len(depths(size)))]


def stages(size: Size) -> list[list[Block]]:
    """The blocks; the first of every stage but the first halves the picture."""
    found, channels = [], size["stem"]
    for stage, (depth, width) in enumerate(zip(depths(size), widths(size), strict=True)):
        row = []
        for block in range(depth):
            row.append(Block(channels, width, 2 if stage and not block else 1))
            channels = width
        found.append(row)
    return found


def convolutions(size: Size) -> list[Convolution]:
    """Every convolution in forward order; the first is the stem, whose picture needs no gradient."""
    of = partial(Convolution, batch=size["batch"])
    stem = of(size["image"], 3, size["stem"], 7, 2, 3, data=True)
    found, extent = [stem], (stem.result - 1) // 2 + 1
    for block in (b for row in stages(size) for b in row):
        wide = of(extent, block.middle, block.middle, 3, block.stride, 1)
        found += [of(extent, block.inputs, block.middle, 1), wide]
        found.append(of(wide.result, block.middle, block.outputs, 1))
        if block.projects:
            found.append(of(extent, block.inputs, block.outputs, 1, block.stride))
        extent = wide.result
    return found


def work(size: Size) -> list[Work]:
    return [*convolutions(size), Product(size["batch"], widths(size)[-1], size["labels"])]


def parameters(size: Size) -> int:
    """Trainable elements: kernels without bias, scale and shift of each normalisation, the classifier."""
    kernels = sum(c.kernel**2 * c.inputs * c.outputs + 2 * c.outputs for c in convolutions(size))
    return kernels + affine(widths(size)[-1], size["labels"])


def buffers(size: Size) -> int:
    """Running mean and variance of each normalisation: ``forward`` normalises by them."""
    return sum(2 * c.outputs for c in convolutions(size))


WORKLOAD = Workload(
    name="resnet50",
    what="ResNet-50, a residual network of bottlenecks (transformers' ResNetForImageClassification)",
    sizes=SIZES,
    definitions={
        "torch": "detente.workloads.resnet50.in_torch",
        "flax": "detente.workloads.resnet50.in_flax",
    },
    batch=partial(labelled_pictures, grain=GRAIN),
    flops=lambda size, region: flops(work(size), region),
    bytes=of_labelled_pictures(parameters, buffers=buffers),
    products=lambda size: largest(work(size)),
    parameters=parameters,
    # One label would be a regression to transformers; one value a channel has no unbiased variance.
    constraints=(
        multiple("width", REDUCTION),
        at_least("labels", 2),
        at_least("image", 8),
        at_least("batch", 2),
        Constraint(lambda dims: sum(_depths(dims)) <= 1000, "the depths must be at most 1000 together"),
    ),
    source="He et al. 2016, ResNet-50: the default ResNetConfig of transformers, 1000 labels, 4 x 224 x 224",
)
