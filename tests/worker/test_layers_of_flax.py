"""Layers as Flax's own modules compute them: NHWC, heads on axes of their own, layers in a loop, Linen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch import nn
from torch.nn import functional as F

from detente.worker.layers.compare import first_difference
from detente.worker.layers.difference import Difference
from tests.worker.layer_pairs import drawn, jax_side, torch_side

Leaves = dict[str, np.ndarray]
DTYPES: dict[str, Any] = {"dtype": jnp.float64, "param_dtype": jnp.float64}
rng = np.random.default_rng(0)


def nnx_function(make: Callable[[nnx.Rngs], Any], call: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """``function(named, x)`` of an NNX module; names are paths with dots."""

    def function(named: Mapping[str, Any], x: Any) -> Any:
        graph, state = nnx.split(make(nnx.Rngs(0)))
        flat = [
            (path, v.replace(named[n]) if (n := ".".join(map(str, path))) in named else v)
            for path, v in nnx.to_flat_state(state)
        ]
        module = nnx.merge(graph, nnx.from_flat_state(flat))
        out = call(module, x)
        # What a batch norm writes is a result, too.
        return out, nnx.state(module)

    return function


def dense(module: nn.Module, prefix: str = "", tensors: Leaves | None = None) -> Leaves:
    """The leaves of torch's tensors under Flax's names: kernels (in, out) and (height, width, in, out)."""
    found: Leaves = {}
    ends = {"weight": "scale", "running_mean": "mean", "running_var": "var"}
    for name, tensor in (tensors or {n: t.numpy() for n, t in module.state_dict().items()}).items():
        path, _, end = name.rpartition(".")
        if end == "weight" and tensor.ndim > 1:
            kernel = np.moveaxis(tensor, (0, 1), (-1, -2)).copy()
            found[f"{prefix}{path}.kernel"] = kernel
        elif end != "num_batches_tracked":
            found[f"{prefix}{path}.{ends.get(end, end)}"] = tensor
    return found


def parts_of(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """By running the table above on one tensor at a time."""
    tensors = {n: t.numpy() for n, t in module.state_dict().items()}
    return {n: tuple(dense(module, "", {n: a})) for n, a in tensors.items()}


def difference(
    module: nn.Module, x: np.ndarray, function: Any, given: np.ndarray | None = None
) -> Difference | None:
    right = torch_side(module, torch.from_numpy(x))
    other = jax_side(function, dense(module), x if given is None else given)
    return first_difference(right, other, parts_of(module))


# Convolutions --------------------------------------------------------------------------------------------------------


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu_(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class FlaxCnn(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, padding: Any = ((1, 1), (1, 1)), train: bool = True) -> None:
        norm = {"epsilon": 1e-5, "momentum": 0.9, "use_running_average": not train, "rngs": rngs, **DTYPES}
        self.conv1 = nnx.Conv(3, 6, (3, 3), use_bias=False, rngs=rngs, **DTYPES)
        self.conv2 = nnx.Conv(6, 8, (3, 3), strides=2, padding=padding, rngs=rngs, **DTYPES)
        self.norm1, self.norm2 = nnx.BatchNorm(6, **norm), nnx.BatchNorm(8, **norm)
        self.head = nnx.Linear(8, 4, rngs=rngs, **DTYPES)

    def __call__(self, x: Any) -> Any:
        x = nnx.relu(self.norm1(self.conv1(x)))
        x = nnx.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((1, 2)))


IMAGES = rng.standard_normal((4, 3, 8, 8))
NHWC = IMAGES.transpose(0, 2, 3, 1)


def call(module: Any, x: Any) -> Any:
    return module(x)


def patches(module: FlaxCnn, x: Any) -> Any:
    """The first convolution as a product with patches, the second as a sum of nine products."""
    conv, kernel = jax.lax.conv_general_dilated_patches, module.conv1.kernel[...]
    y = conv(x, (3, 3), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = nnx.relu(module.norm1(y @ kernel.transpose(2, 0, 1, 3).reshape(-1, kernel.shape[-1])))
    padded, kernel = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), module.conv2.kernel[...]
    y = sum(padded[:, i : i + 8 : 2, j : j + 8 : 2] @ kernel[i, j] for i in range(3) for j in range(3))
    x = nnx.relu(module.norm2(y + module.conv2.bias[...]))
    return module.head(x.mean((1, 2)))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("how", [call, patches])
def test_a_cnn_in_two_layouts_differs_nowhere(train: bool, how: Any) -> None:
    module = drawn(Cnn()).train(train)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    function = nnx_function(lambda rngs: FlaxCnn(rngs, train=train), how)
    assert difference(module, IMAGES, function, NHWC) is None
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())


def test_padding_at_one_side_is_named() -> None:
    """With a stride, SAME pads below and right alone where torch pads all round; the shapes are the same."""
    found = difference(drawn(Cnn()), IMAGES, nnx_function(lambda r: FlaxCnn(r, "SAME"), call), NHWC)
    assert found is not None and found.tensors == ("conv2.weight", "conv2.bias") and found.given
    assert "look at conv2 itself" in found.text


def test_padding_that_changes_the_shape_is_named() -> None:
    found = difference(drawn(Cnn()), IMAGES, nnx_function(lambda r: FlaxCnn(r, "VALID"), call), NHWC)
    assert found is not None and found.tensors == ("conv2.weight", "conv2.bias")
    assert "[4, 8, 4, 4]" in found.text and "[4, 3, 3, 8]" in found.text


def test_running_statistics_that_are_not_used_are_named() -> None:
    function = nnx_function(lambda r: FlaxCnn(r, train=True), call)
    found = difference(drawn(Cnn()).eval(), IMAGES, function, NHWC)
    assert found is not None and found.tensors[0].startswith("norm1.") and found.kind == "layer"


# Attention with heads on axes of their own, against one fused tensor -------------------------------------------------


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])


class FlaxEncoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, epsilon: float = 1e-5) -> None:
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs, **DTYPES)
        self.norm = nnx.LayerNorm(8, epsilon=epsilon, rngs=rngs, **DTYPES)

    def __call__(self, x: Any) -> Any:
        return self.norm(x + self.attention(x))


def encoder_leaves(module: Encoder, order: str = "qkv") -> tuple[Leaves, dict[str, tuple[str, ...]]]:
    state = {n: t.numpy() for n, t in module.state_dict().items()}
    long = {"q": "query", "k": "key", "v": "value"}
    leaves: Leaves = {"norm.scale": state["norm.weight"], "norm.bias": state["norm.bias"]}
    for i, letter in enumerate(order):
        rows = slice(8 * i, 8 * i + 8)
        leaves[f"attention.{long[letter]}.kernel"] = state["attention.in_proj_weight"][rows].T.reshape(
            8, 2, 4
        )
        leaves[f"attention.{long[letter]}.bias"] = state["attention.in_proj_bias"][rows].reshape(2, 4)
    leaves["attention.out.kernel"] = state["attention.out_proj.weight"].T.reshape(2, 4, 8)
    leaves["attention.out.bias"] = state["attention.out_proj.bias"]
    three = tuple(f"attention.{long[letter]}" for letter in order)
    parts = {
        "attention.in_proj_weight": tuple(f"{n}.kernel" for n in three),
        "attention.in_proj_bias": tuple(f"{n}.bias" for n in three),
        "attention.out_proj.weight": ("attention.out.kernel",),
        "attention.out_proj.bias": ("attention.out.bias",),
        "norm.weight": ("norm.scale",),
        "norm.bias": ("norm.bias",),
    }
    return leaves, parts


@pytest.mark.parametrize(
    ("order", "epsilon", "scale", "layer"),
    [
        ("qkv", 1e-5, 1.0, None),
        ("kqv", 1e-5, 1.0, "attention.out_proj.weight"),
        ("qkv", 1e-6, 1.0, "norm.weight"),
        ("qkv", 1e-5, 2.0, "attention.in_proj_weight"),
    ],
)
@pytest.mark.parametrize("tokens", [5, 400])
@pytest.mark.parametrize("training", [True, False])
def test_one_product_of_torch_is_three_of_flax(
    order: str, epsilon: float, scale: float, layer: str | None, tokens: int, training: bool
) -> None:
    module = drawn(Encoder()).train(training)
    leaves, parts = encoder_leaves(module, order)
    leaves["attention.value.kernel"] = leaves["attention.value.kernel"] * scale
    x = rng.standard_normal((2, tokens, 8))
    function = nnx_function(lambda rngs: FlaxEncoder(rngs, epsilon), call)
    found = first_difference(torch_side(module, torch.from_numpy(x)), jax_side(function, leaves, x), parts)
    assert (found is None) if layer is None else (found is not None and layer in found.tensors), found


# Layers in a loop, other libraries -----------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(6), "fc": nn.Linear(6, 6)}) for _ in range(3)
        )
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer["fc"](layer["norm"](x)))
        return self.head(x)


class FlaxLayer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs, **DTYPES)
        self.fc = nnx.Linear(6, 6, rngs=rngs, **DTYPES)

    def __call__(self, x: Any) -> Any:
        return x + jnp.tanh(self.fc(self.norm(x)))


class FlaxMlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, remat: bool = False) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: nnx.Rngs) -> FlaxLayer:
            return FlaxLayer(rngs)

        self.layers, self.remat = make(rngs), remat
        self.head = nnx.Linear(6, 2, rngs=rngs, **DTYPES)

    def __call__(self, x: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x: Any, layer: FlaxLayer) -> Any:
            return nnx.remat(FlaxLayer.__call__)(layer, x) if self.remat else layer(x)

        return self.head(run(x, self.layers))


def stacked(leaves: Leaves) -> Leaves:
    made = {n: a for n, a in leaves.items() if not n.startswith("layers.")}
    for end in ("norm.scale", "norm.bias", "fc.kernel", "fc.bias"):
        made[f"layers.{end}"] = np.stack([leaves[f"layers.{i}.{end}"] for i in range(3)])
    return made


def stacked_parts(module: nn.Module) -> dict[str, tuple[str, ...]]:
    def turned(name: str) -> str:
        head, _, rest = name.partition(".")
        i, _, end = rest.partition(".")
        return f"layers.{end}[{i}]" if head == "layers" else name

    return {n: tuple(map(turned, p)) for n, p in parts_of(module).items()}


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("wrong", [None, "layers.1.fc.weight", "layers.2.norm.bias"])
def test_layers_in_a_loop_have_their_own_names(remat: bool, wrong: str | None) -> None:
    module = drawn(Mlp())
    leaves, x = dense(module), rng.standard_normal((4, 6))
    if wrong:
        leaves[parts_of(module)[wrong][0]] = 1.1 * leaves[parts_of(module)[wrong][0]]
    right = torch_side(module, torch.from_numpy(x))
    other = jax_side(nnx_function(lambda rngs: FlaxMlp(rngs, remat), call), stacked(leaves), x)
    found = first_difference(right, other, stacked_parts(module))
    assert (found is None) if wrong is None else (found is not None and wrong in found.tensors)


class LinenMlp(linen.Module):
    epsilon: float = 1e-5

    @linen.compact
    def __call__(self, x: Any) -> Any:
        for i in range(3):
            y = linen.LayerNorm(epsilon=self.epsilon if i == 1 else 1e-5, name=f"norm{i}", **DTYPES)(x)
            x = x + jnp.tanh(linen.Dense(6, name=f"fc{i}", **DTYPES)(y))
        return linen.Dense(2, name="head", **DTYPES)(x)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_linen(epsilon: float) -> None:
    module, x = drawn(Mlp()), rng.standard_normal((4, 6))

    def turned(name: str) -> str:
        pieces = name.split(".")
        return name if pieces[0] == "head" else f"{pieces[2]}{pieces[1]}.{pieces[3]}"

    def function(named: Mapping[str, Any], x: Any) -> Any:
        params: dict[str, Any] = {}
        for name, a in named.items():
            path, _, end = name.rpartition(".")
            params.setdefault(path, {})[end] = a
        return LinenMlp(epsilon).apply({"params": params}, x)

    leaves = {turned(n): a for n, a in dense(module).items()}
    parts = {n: tuple(map(turned, p)) for n, p in parts_of(module).items()}
    found = first_difference(torch_side(module, torch.from_numpy(x)), jax_side(function, leaves, x), parts)
    if epsilon == 1e-5:
        assert found is None
    else:
        assert found is not None and found.tensors[0].startswith("layers.1.norm.")
