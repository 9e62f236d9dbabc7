"""``resnet`` in Flax NNX, channels last.

Style: Flax's MNIST tutorial (flax.readthedocs.io, mnist_tutorial) for convolutions and normalisation in NNX; the
structure of google/flax's ``examples/imagenet/models.py``. Names of attributes follow the torch model.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

# A list of modules; before 0.12 Flax took a plain one and had no name for it.
Modules = getattr(nnx, "List", list)


class BatchNorm(nnx.Module):
    """Batch normalisation over the last axis with torch's running buffers.

    ``nnx.BatchNorm`` keeps the biased variance of the batch and always in float32. torch keeps the unbiased one,
    n/(n-1) of it, while it normalises by the biased one; the buffers of the two would part at the first step.
    """

    def __init__(self, features: int, *, momentum: float = 0.1, epsilon: float = 1e-5, dtype: str) -> None:
        self.scale = nnx.Param(jnp.ones(features, dtype))
        self.bias = nnx.Param(jnp.zeros(features, dtype))
        self.mean = nnx.BatchStat(jnp.zeros(features, dtype))
        self.var = nnx.BatchStat(jnp.ones(features, dtype))
        # torch's momentum is the share of the new batch; Flax's is the share of the old average.
        self.momentum, self.epsilon = momentum, epsilon
        self.use_running_average = False  # Module.train() and Module.eval() set it, by this name

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.promote_types(x.dtype, self.scale.dtype))
        if self.use_running_average:
            mean, var = self.mean[...], self.var[...]
        else:
            axes = tuple(range(x.ndim - 1))
            mean = wide.mean(axes)
            var = jnp.square(wide - mean).mean(axes)
            count = x.size // x.shape[-1]
            self._average(self.mean, mean)
            self._average(self.var, var * (count / (count - 1)))
        y = (wide - mean) * jax.lax.rsqrt(var + self.epsilon) * self.scale[...] + self.bias[...]
        # Autocast leaves batch normalisation in the dtype of its input.
        return y.astype(x.dtype)

    def _average(self, running: nnx.BatchStat, new: jax.Array) -> None:
        new = jax.lax.stop_gradient(new)
        running[...] = (1 - self.momentum) * running[...] + self.momentum * new


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

    def __init__(self, size: Size, *, parameters: str, compute: str, rngs: nnx.Rngs) -> None:
        width = size["width"]
        dtypes = {"dtype": jnp.dtype(compute), "param_dtype": jnp.dtype(parameters)}
        conv = partial(nnx.Conv, use_bias=False, rngs=rngs, **dtypes)
        norm = partial(BatchNorm, dtype=parameters)
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
        self.fc = nnx.Linear(channels, size["classes"], rngs=rngs, **dtypes)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.bn1(self.conv1(images)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for row in self.stages:
            for block in row:
                x = block(x)
        return self.fc(x.mean((1, 2)))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` changes nothing: the blocks differ in shape."""
    return ResNet(size, parameters=parameters, compute=compute, rngs=nnx.Rngs(0))


def loss(module: nnx.Module, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean cross entropy over the batch, in at least float32."""
    # The prepared batch is channels first. Turning 3 channels is the one layout change, and it is inside the clock.
    logits = module(jnp.transpose(batch["images"], (0, 2, 3, 1)))
    log_p = jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
    return -jnp.mean(jnp.take_along_axis(log_p, batch["labels"][:, None], axis=-1)), {"logits": logits}


_CONV = (("weight", "kernel", "convolution"),)
_NORM = (
    ("weight", "scale", "same"),
    ("bias", "bias", "same"),
    ("running_mean", "mean", "same"),
    ("running_var", "var", "same"),
)
_LINEAR = (("weight", "kernel", "transposed"), ("bias", "bias", "same"))


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    """Parameters and the running buffers; torch's ``num_batches_tracked`` is a count, not a weight."""
    modules: list[tuple[tuple[str | int, ...], tuple]] = [(("conv1",), _CONV), (("bn1",), _NORM)]
    for stage in range(size["stages"]):
        for block in range(size["blocks"]):
            here = ("stages", stage, block)
            modules += [((*here, f"conv{i}"), _CONV) for i in (1, 2)]
            modules += [((*here, f"bn{i}"), _NORM) for i in (1, 2)]
            if stage and not block:
                modules += [((*here, "shortcut"), _CONV), ((*here, "shortcut_bn"), _NORM)]
    modules.append((("fc",), _LINEAR))
    return tuple(
        WeightRule(".".join(map(str, (*path, torch_leaf))), (*path, flax_leaf), layout)
        for path, leaves in modules
        for torch_leaf, flax_leaf, layout in leaves
    )
