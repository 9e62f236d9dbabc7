"""``resnet50`` in Flax NNX, channels last, in the structure of google/flax's ``examples/imagenet/models.py``. Names of
attributes follow the torch model."""

from __future__ import annotations

from functools import partial

import jax
from flax import nnx

from detente.workloads.flax_parts.batch_norm import BatchNorm
from detente.workloads.flax_parts.layers import Dtypes, linear
from detente.workloads.flax_parts.losses import of_labelled_pictures as loss
from detente.workloads.flax_parts.stacked import Modules
from detente.workloads.resnet50 import spec
from detente.workloads.weight_tables import BATCH_NORM, CONVOLUTION_WITHOUT_BIAS, LINEAR, At, rules_of
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class Convolved(nnx.Module):
    """A convolution without bias, padded to keep the extent, and its normalisation."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, dtypes: Dtypes, rngs: nnx.Rngs
    ) -> None:
        # Numbers, not "SAME": with a stride, XLA's SAME pads the far side where torch pads both.
        self.convolution = nnx.Conv(
            inputs,
            outputs,
            (kernel, kernel),
            strides=stride,
            padding=kernel // 2,
            use_bias=False,
            rngs=rngs,
            **dtypes.of_products(),
        )
        self.normalization = BatchNorm(outputs, dtype=dtypes.parameters)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.normalization(self.convolution(x))


class Bottleneck(nnx.Module):
    """1x1 to a quarter of the channels, 3x3 with the stride, 1x1 back; and a shortcut."""

    def __init__(self, block: spec.Block, *, of: partial) -> None:
        self.layer = Modules(
            [
                of(block.inputs, block.middle, 1),
                of(block.middle, block.middle, 3, block.stride),
                of(block.middle, block.outputs, 1),
            ]
        )
        self.projects = block.projects
        if block.projects:
            self.shortcut = of(block.inputs, block.outputs, 1, block.stride)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.layer[2](nnx.relu(self.layer[1](nnx.relu(self.layer[0](x)))))
        return nnx.relu(y + (self.shortcut(x) if self.projects else x))


class ResNet(nnx.Module):
    """``images`` (batch, height, width, 3) to logits (batch, labels)."""

    def __init__(self, size: Size, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        of = partial(Convolved, dtypes=dtypes, rngs=rngs)
        self.embedder = of(3, size["stem"], 7, 2)
        self.stages = Modules(Modules(Bottleneck(block, of=of) for block in row) for row in spec.stages(size))
        self.classifier = linear(spec.widths(size)[-1], size["labels"], dtypes, rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.embedder(images))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for row in self.stages:
            for block in row:
                x = block(x)
        return self.classifier(x.mean((1, 2)))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` changes nothing: few blocks in a row have one shape."""
    return ResNet(size, dtypes=Dtypes(parameters, compute), rngs=nnx.Rngs(0))


_CONVOLVED = {"convolution": CONVOLUTION_WITHOUT_BIAS, "normalization": BATCH_NORM}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    """Parameters and the running buffers."""
    rules = rules_of(_CONVOLVED, torch="resnet.embedder.embedder", other="embedder")
    for stage, row in enumerate(spec.stages(size)):
        for i, block in enumerate(row):
            torch, other = f"resnet.encoder.stages.{stage}.layers.{i}", f"stages.{stage}.{i}"
            for part in ("layer.0", "layer.1", "layer.2", *(["shortcut"] if block.projects else [])):
                rules += rules_of(_CONVOLVED, torch=f"{torch}.{part}", other=f"{other}.{part}")
    return (*rules, *rules_of({"classifier.1": At("classifier", LINEAR)}))
