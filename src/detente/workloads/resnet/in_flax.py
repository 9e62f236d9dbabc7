"""``resnet`` in Flax NNX, channels last.

Style: Flax's MNIST tutorial (flax.readthedocs.io, mnist_tutorial) for convolutions and normalisation in NNX; the
structure of google/flax's ``examples/imagenet/models.py``. Names of attributes follow the torch model.
"""

from __future__ import annotations

from functools import partial

import jax
from flax import nnx

from detente.workloads.flax_parts.batch_norm import BatchNorm
from detente.workloads.flax_parts.layers import Dtypes, linear
from detente.workloads.flax_parts.losses import of_labelled_pictures as loss
from detente.workloads.flax_parts.stacked import Modules
from detente.workloads.weight_tables import BATCH_NORM, CONVOLUTION_WITHOUT_BIAS, LINEAR, rules_of
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class Block(nnx.Module):
    """Two 3x3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, conv: partial, norm: partial) -> None:
        # Numbers, not "SAME": with a stride, XLA's SAME pads the far side where torch pads both.
        self.conv1 = conv(inputs, outputs, (3, 3), strides=stride, padding=1)
        self.bn1 = norm(outputs)
        self.conv2 = conv(outputs, outputs, (3, 3), padding=1)
        self.bn2 = norm(outputs)
        self.projects = stride != 1 or inputs != outputs
        if self.projects:
            self.shortcut = conv(inputs, outputs, (1, 1), strides=stride, padding=0)
            self.shortcut_bn = norm(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.projects:
            x = self.shortcut_bn(self.shortcut(x))
        return nnx.relu(y + x)


class ResNet(nnx.Module):
    """``images`` (batch, height, width, 3) to logits (batch, classes)."""

    def __init__(self, size: Size, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        width = size["width"]
        conv = partial(nnx.Conv, use_bias=False, rngs=rngs, **dtypes.of_products())
        norm = partial(BatchNorm, dtype=dtypes.parameters)
        self.conv1 = conv(3, width, (7, 7), strides=2, padding=3)
        self.bn1 = norm(width)
        rows, channels = [], width
        for stage in range(size["stages"]):
            row = []
            for block in range(size["blocks"]):
                stride = 2 if stage and not block else 1
                row.append(Block(channels, width << stage, stride, conv=conv, norm=norm))
                channels = width << stage
            rows.append(Modules(row))
        self.stages = Modules(rows)
        self.fc = linear(channels, size["classes"], dtypes, rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.bn1(self.conv1(images)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for row in self.stages:
            for block in row:
                x = block(x)
        return self.fc(x.mean((1, 2)))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` changes nothing: the blocks differ in shape."""
    return ResNet(size, dtypes=Dtypes(parameters, compute), rngs=nnx.Rngs(0))


_BLOCK = {
    "conv1": CONVOLUTION_WITHOUT_BIAS,
    "bn1": BATCH_NORM,
    "conv2": CONVOLUTION_WITHOUT_BIAS,
    "bn2": BATCH_NORM,
}
_PROJECTION = {"shortcut": CONVOLUTION_WITHOUT_BIAS, "shortcut_bn": BATCH_NORM}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    """Parameters and the running buffers."""
    rules = rules_of({"conv1": CONVOLUTION_WITHOUT_BIAS, "bn1": BATCH_NORM, "fc": LINEAR})
    for stage in range(size["stages"]):
        for block in range(size["blocks"]):
            table = _BLOCK | (_PROJECTION if stage and not block else {})
            rules += rules_of(table, torch=f"stages.{stage}.{block}", other=f"stages.{stage}.{block}")
    return tuple(rules)
