"""Shapes, batches and costs of ``resnet``."""

from __future__ import annotations

from functools import partial

from detente.workloads.batches import labelled_pictures
from detente.workloads.constraints import at_least, at_most
from detente.workloads.costs import Convolution, Product, Work, affine, flops, largest
from detente.workloads.traffic import of_labelled_pictures
from detente.workloads.workload import Size, Workload

# No larger size. The gradient of a ReLU jumps where its input is within rounding of zero, and a fair pair whose
# roundings differ then lies on two sides of the jump: of three fp32 runs of ResNet-18 on 8 pictures of 64 x 64 one
# had such a flip, 4e-3 of a whole gradient tensor, 200 times the proof's limit. Of 100 runs at this size none had.
SIZES = {
    "tiny": Size("tiny", {"width": 8, "stages": 2, "blocks": 1, "classes": 10, "image": 32, "batch": 4}),
}


def convolutions(size: Size) -> list[Convolution]:
    """Every convolution in forward order; the first is the stem, whose picture needs no gradient."""
    width = size["width"]
    of = partial(Convolution, batch=size["batch"])
    stem = of(size["image"], 3, width, kernel=7, stride=2, padding=3, data=True)
    found, extent, channels = [stem], (stem.result - 1) // 2 + 1, width
    for stage in range(size["stages"]):
        outputs = width << stage
        for block in range(size["blocks"]):
            stride = 2 if stage and not block else 1
            first = of(extent, channels, outputs, 3, stride, 1)
            found += [first, of(first.result, outputs, outputs, 3, 1, 1)]
            if stride != 1 or channels != outputs:
                found.append(of(extent, channels, outputs, 1, stride, 0))
            extent, channels = first.result, outputs
    return found


def classifier(size: Size) -> Product:
    """The last product."""
    return Product(size["batch"], size["width"] << (size["stages"] - 1), size["classes"])


def work(size: Size) -> list[Work]:
    return [*convolutions(size), classifier(size)]


def parameters(size: Size) -> int:
    """Trainable elements: kernels without bias, scale and shift of each normalisation, the classifier."""
    _, k, n = classifier(size).shape
    return sum(c.kernel**2 * c.inputs * c.outputs + 2 * c.outputs for c in convolutions(size)) + affine(k, n)


def buffers(size: Size) -> int:
    """Running mean and variance of each normalisation: ``forward`` normalises by them."""
    return sum(2 * c.outputs for c in convolutions(size))


WORKLOAD = Workload(
    name="resnet",
    what="a small residual network with batch normalisation and its running buffers",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.resnet.in_torch", "flax": "detente.workloads.resnet.in_flax"},
    batch=partial(labelled_pictures, labels="classes"),
    flops=lambda size, region: flops(work(size), region),
    bytes=of_labelled_pictures(parameters, labels="classes", buffers=buffers),
    products=lambda size: largest(work(size)),
    parameters=parameters,
    # One value a channel has no unbiased variance.
    constraints=(at_least("batch", 2), at_most("stages", 8), at_most("blocks", 100)),
    source="He et al. 2016, Deep Residual Learning: the stem and the basic blocks of ResNet-18, fewer and narrower",
)
