"""Shapes, batches and costs of ``resnet``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detente.workloads.traffic import backward_products, parameter_traffic
from detente.workloads.workload import Size, Workload

# No larger size. The gradient of a ReLU jumps where its input is within rounding of zero, and a fair pair whose
# roundings differ then lies on two sides of the jump: of three fp32 runs of ResNet-18 on 8 pictures of 64 x 64 one
# had such a flip, 4e-3 of a whole gradient tensor, 200 times the proof's limit. Of 100 runs at this size none had.
SIZES = {
    "tiny": Size("tiny", {"width": 8, "stages": 2, "blocks": 1, "classes": 10, "image": 32, "batch": 4}),
}


@dataclass(frozen=True)
class Convolution:
    """A square convolution on a square picture: ``extent`` x ``extent`` x ``inputs`` to ``outputs`` channels."""

    extent: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int

    @property
    def result(self) -> int:
        """Extent of the result."""
        return (self.extent + 2 * self.padding - self.kernel) // self.stride + 1

    def taps(self) -> int:
        """Along one axis: pairs of an output position and a kernel position that meet a pixel, not padding."""
        return sum(
            0 <= o * self.stride + k - self.padding < self.extent
            for o in range(self.result)
            for k in range(self.kernel)
        )

    def flops(self, batch: int) -> int:
        return 2 * batch * self.taps() ** 2 * self.inputs * self.outputs


def convolutions(size: Size) -> list[Convolution]:
    """Every convolution in forward order; the first is the stem."""
    width = size["width"]
    stem = Convolution(size["image"], 3, width, kernel=7, stride=2, padding=3)
    found, extent, channels = [stem], (stem.result - 1) // 2 + 1, width
    for stage in range(size["stages"]):
        outputs = width << stage
        for block in range(size["blocks"]):
            stride = 2 if stage and not block else 1
            first = Convolution(extent, channels, outputs, 3, stride, 1)
            found += [first, Convolution(first.result, outputs, outputs, 3, 1, 1)]
            if stride != 1 or channels != outputs:
                found.append(Convolution(extent, channels, outputs, 1, stride, 0))
            extent, channels = first.result, outputs
    return found


def classifier(size: Size) -> tuple[int, int, int]:
    """(m, k, n) of the last product."""
    return size["batch"], size["width"] << (size["stages"] - 1), size["classes"]


def parameters(size: Size) -> int:
    """Trainable elements: kernels without bias, scale and shift of each normalisation, the classifier."""
    _, k, n = classifier(size)
    return sum(c.kernel**2 * c.inputs * c.outputs + 2 * c.outputs for c in convolutions(size)) + k * n + n


def batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """``images`` (batch, 3, image, image) float32, standard normal, channels first as torch has them; ``labels``
    (batch,) int64.
    """
    shape = (size["batch"], 3, size["image"], size["image"])
    return {
        "images": rng.standard_normal(shape, dtype=np.float32),
        "labels": rng.integers(0, size["classes"], size["batch"], dtype=np.int64),
    }


def flops(size: Size, region: str) -> int:
    """Products and convolutions. Multiplications with the zeros of padding are not counted, because an
    implementation may leave them out; the two gradients of a convolution have exactly as many. The images need no
    gradient, so the stem costs two, not three.
    """
    stem, *others = convolutions(size)
    m, k, n = classifier(size)
    inner = sum(c.flops(size["batch"]) for c in others) + 2 * m * k * n
    times = backward_products(region)
    return inner * times + stem.flops(size["batch"]) * (1 if times == 1 else 2)


def traffic(size: Size, region: str, parameter: int, activation: int) -> int:
    """Bytes. Parameters by region (traffic.py); images and labels read; running mean and variance of each
    normalisation read, and written in training; ``forward`` normalises by them and writes the logits.
    """
    images = size["batch"] * 3 * size["image"] ** 2
    buffers = sum(2 * c.outputs for c in convolutions(size))
    total = parameter_traffic(parameters(size), region, parameter)
    total += images * activation + 4 * size["batch"] + buffers * parameter * (1 if region == "forward" else 2)
    if region == "forward":
        total += size["batch"] * size["classes"] * activation
    return total


def products(size: Size) -> tuple[int, int, int]:
    """The largest convolution, written as the product it is: (batch x positions, taps x inputs, outputs)."""
    largest = max(convolutions(size), key=lambda c: c.flops(size["batch"]))
    return size["batch"] * largest.result**2, largest.kernel**2 * largest.inputs, largest.outputs


WORKLOAD = Workload(
    name="resnet",
    what="a small residual network with batch normalisation and its running buffers",
    sizes=SIZES,
    definitions={"torch": "detente.workloads.resnet.in_torch", "flax": "detente.workloads.resnet.in_flax"},
    batch=batch,
    flops=flops,
    bytes=traffic,
    products=products,
    source="He et al. 2016, Deep Residual Learning: the stem and the basic blocks of ResNet-18, fewer and narrower",
)
