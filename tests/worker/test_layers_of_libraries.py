"""Layers as Equinox and Haiku compute them: one example at a time under vmap, parameters by module and name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente.worker.layers.compare import first_difference
from tests.worker.layer_pairs import drawn, jax_side, torch_side

rng = np.random.default_rng(0)
ROWS = rng.standard_normal((3, 5, 8))
IMAGES = rng.standard_normal((3, 2, 8, 8))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.ModuleDict({n: nn.Linear(8, 8) for n in ("q", "k", "v", "out")})
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (self.attention[n](y).view(*y.shape[:2], 2, 4).transpose(1, 2) for n in "qkv")
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.attention["out"](y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv1(x)))
        return self.head(self.conv2(x).flatten(1))


def numpy_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {n: t.detach().numpy().copy() for n, t in module.named_parameters()}


@pytest.mark.parametrize(
    ("fault", "layer"), [(None, None), ("epsilon", "norm2.weight"), ("erf", "fc2.weight")]
)
def test_equinox_under_vmap(fault: str | None, layer: str | None) -> None:
    eqx = pytest.importorskip("equinox")
    eqx_nn = eqx.nn

    class Model(eqx.Module):
        norm1: Any
        norm2: Any
        attention: Any
        fc1: Any
        fc2: Any

        def __init__(self) -> None:
            keys = iter(jax.random.split(jax.random.key(0), 9))
            self.norm1 = eqx_nn.LayerNorm(8, eps=1e-5)
            self.norm2 = eqx_nn.LayerNorm(8, eps=1e-6 if fault == "epsilon" else 1e-5)
            bias = {f"use_{n}_bias": True for n in ("query", "key", "value", "output")}
            self.attention = eqx_nn.MultiheadAttention(2, 8, key=next(keys), **bias)
            self.fc1, self.fc2 = (
                eqx_nn.Linear(8, 16, key=next(keys)),
                eqx_nn.Linear(16, 8, key=next(keys)),
            )

        def __call__(self, x: Any) -> Any:
            y = jax.vmap(self.norm1)(x)
            x = x + self.attention(y, y, y)
            y = jax.nn.gelu(jax.vmap(self.fc1)(jax.vmap(self.norm2)(x)), approximate=fault != "erf")
            return x + jax.vmap(self.fc2)(y)

    module = drawn(Tokens())
    long = {"q": "query", "k": "key", "v": "value", "out": "output"}

    def leaf(name: str) -> str:
        pieces = name.split(".")
        return f"attention.{long[pieces[1]]}_proj.{pieces[2]}" if pieces[0] == "attention" else name

    def function(named: Mapping[str, Any], x: Any) -> Any:
        model = Model()
        for name, array in named.items():

            def find(m: Any, path: str = name) -> Any:
                for piece in path.split("."):
                    m = getattr(m, piece)
                return m

            model = eqx.tree_at(find, model, array)
        return jax.vmap(model)(x)

    leaves = {leaf(n): a for n, a in numpy_of(module).items()}
    right = torch_side(module, torch.from_numpy(ROWS))
    other = jax_side(function, leaves, ROWS)
    found = first_difference(right, other, {n: (leaf(n),) for n in numpy_of(module)})
    assert (found is None) if layer is None else (found is not None and layer in found.tensors), found


@pytest.mark.parametrize(("padding", "layer"), [(1, None), (((2, 0), (2, 0)), "conv1.weight")])
def test_equinox_with_channels_first(padding: Any, layer: str | None) -> None:
    eqx = pytest.importorskip("equinox")
    module = drawn(Pictures())

    def function(named: Mapping[str, Any], x: Any) -> Any:
        key = jax.random.key(0)
        layers = {
            "conv1": eqx.nn.Conv2d(2, 4, 3, padding=padding, key=key),
            "norm": eqx.nn.GroupNorm(2, 4),
            "conv2": eqx.nn.Conv2d(4, 4, 3, stride=2, key=key),
            "head": eqx.nn.Linear(36, 3, key=key),
        }
        for name, array in named.items():
            layer, _, end = name.partition(".")
            shaped = array[:, None, None] if layer.startswith("conv") and end == "bias" else array
            layers[layer] = eqx.tree_at(lambda m, e=end: getattr(m, e), layers[layer], shaped)

        def one(x: Any) -> Any:
            x = jax.nn.relu(layers["norm"](layers["conv1"](x)))
            return layers["head"](layers["conv2"](x).reshape(-1))

        return eqx.filter_jit(jax.vmap(one))(x)

    leaves = numpy_of(module)
    right, other = torch_side(module, torch.from_numpy(IMAGES)), jax_side(function, leaves, IMAGES)
    found = first_difference(right, other, {n: (n,) for n in leaves})
    assert (found is None) if layer is None else (found is not None and layer in found.tensors), found


@pytest.mark.parametrize(
    ("fault", "layer"), [(None, None), ("epsilon", "norm2.weight"), ("residual", "norm2.weight")]
)
def test_haiku(fault: str | None, layer: str | None) -> None:
    hk = pytest.importorskip("haiku")
    module = drawn(Tokens())

    def forward(x: Any) -> Any:
        norm = {"axis": -1, "create_scale": True, "create_offset": True}
        y = hk.LayerNorm(name="norm1", eps=1e-5, **norm)(x)
        attention = hk.MultiHeadAttention(
            2, 4, model_size=8, w_init=hk.initializers.RandomNormal(), name="attention"
        )
        y = attention(y, y, y)
        x = y if fault == "residual" else x + y
        y = hk.LayerNorm(name="norm2", eps=1e-6 if fault == "epsilon" else 1e-5, **norm)(x)
        return x + hk.Linear(8, name="fc2")(jax.nn.gelu(hk.Linear(16, name="fc1")(y)))

    long = {"q": "query", "k": "key", "v": "value", "out": "linear"}

    def leaf(name: str) -> str:
        *path, end = name.split(".")
        if path[0] == "attention":
            return f"attention/{long[path[1]]}:{end[0]}"
        ends = {"weight": "scale", "bias": "offset"} if "norm" in name else {"weight": "w", "bias": "b"}
        return f"{path[0]}:{ends[end]}"

    def function(named: Mapping[str, Any], x: Any) -> Any:
        params: dict[str, Any] = {}
        for name, array in named.items():
            path, _, end = name.partition(":")
            params.setdefault(path, {})[end] = array
        return hk.without_apply_rng(hk.transform(forward)).apply(params, x)

    leaves = {leaf(n): (a.T if a.ndim == 2 else a) for n, a in numpy_of(module).items()}
    right, other = torch_side(module, torch.from_numpy(ROWS)), jax_side(function, leaves, ROWS)
    found = first_difference(right, other, {n: (leaf(n),) for n in numpy_of(module)})
    assert (found is None) if layer is None else (found is not None and layer in found.tensors), found


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("fault", "layer"), [(None, None), ("order", "rnn.weight_hh_l0"), ("gate", "rnn.weight_ih_l0")]
)
def test_a_loop_over_time(at_once: bool, fault: str | None, layer: str | None) -> None:
    """torch multiplies the inputs of all times at once, JAX those of one time in each pass of its loop, or as torch."""
    module = drawn(Recurrent())
    leaves = numpy_of(module)
    if fault == "gate":
        leaves["rnn.weight_ih_l0"][:4] *= 1.5

    def function(p: Mapping[str, Any], x: Any) -> Any:
        def given(x: Any) -> Any:
            return x @ p["rnn.weight_ih_l0"].T + p["rnn.bias_ih_l0"]

        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            x = x if at_once else given(x)
            gates = jnp.split(x + h @ p["rnn.weight_hh_l0"].T + p["rnn.bias_hh_l0"], 4, -1)
            i, f, g, o = gates if fault != "order" else (gates[1], gates[0], *gates[2:])
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[0], 4))
        times = jnp.moveaxis(given(x) if at_once else x, 1, 0)
        _, y = jax.lax.scan(cell, (zero, zero), times)
        return jnp.moveaxis(y, 0, 1) @ p["head.weight"].T + p["head.bias"]

    right, other = torch_side(module, torch.from_numpy(ROWS)), jax_side(function, leaves, ROWS)
    found = first_difference(right, other, {n: (n,) for n in leaves})
    assert (found is None) if layer is None else (found is not None and layer in found.tensors), found
