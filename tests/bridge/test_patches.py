"""Convolutions whose kernel strides over its own length, and transposed ones in every shape: the same numbers as
torch's, by every derivative."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

import detente
from detente.bridge.lower.backwards import backwards
from detente.bridge.lower.ops import conv as room
from tests.bridge.test_channels_last import agrees
from tests.sampled import sampled

# A layer, and (N, C, ...).
PATCHES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "as ConvNeXt's": (nn.Conv2d(6, 8, 2, 2), (2, 6, 8, 6)),
    "as ViT's": (nn.Conv2d(3, 8, 4, 4), (2, 3, 12, 12)),
    "something left over": (nn.Conv2d(4, 5, 3, 3), (2, 4, 11, 10)),
    "two lengths": (nn.Conv2d(4, 5, (2, 3), (2, 3), bias=False), (1, 4, 7, 9)),
    "no stride one way": (nn.Conv2d(4, 6, (1, 4), (1, 4)), (2, 4, 3, 8)),
    "one patch": (nn.Conv2d(4, 6, 5, 5), (2, 4, 5, 6)),
    "one dimension": (nn.Conv1d(4, 6, 4, 4), (2, 4, 18)),
    "three dimensions": (nn.Conv3d(2, 4, (2, 1, 3), (2, 1, 3)), (2, 2, 5, 2, 6)),
    "up again": (nn.ConvTranspose2d(6, 4, 2, 2), (2, 6, 3, 4)),
    "up, two lengths": (nn.ConvTranspose2d(6, 4, (2, 3), (2, 3), bias=False), (2, 6, 3, 4)),
    "up, one dimension": (nn.ConvTranspose1d(6, 4, 3, 3), (2, 6, 5)),
    "up, three dimensions": (nn.ConvTranspose3d(4, 2, 2, 2), (1, 4, 2, 3, 2)),
}
TRANSPOSED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "overlapping": (nn.ConvTranspose2d(6, 4, 4, 2, 1), (2, 6, 3, 4)),
    "something added": (nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1), (2, 6, 3, 4)),
    "added to what strides over its length": (nn.ConvTranspose2d(6, 4, 2, 2, output_padding=1), (2, 6, 3, 4)),
    "more added than a stride": (nn.ConvTranspose2d(4, 4, 3, 1, output_padding=1, dilation=2), (2, 4, 5, 5)),
    "groups": (nn.ConvTranspose2d(6, 4, 3, 2, groups=2), (2, 6, 3, 4)),
    "every channel by itself": (nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=6, bias=False), (2, 6, 3, 4)),
    "dilated": (nn.ConvTranspose2d(4, 4, 3, 2, 2, dilation=2), (2, 4, 5, 5)),
    "padding that cuts all but a place": (nn.ConvTranspose2d(4, 4, 3, 1, 2), (2, 4, 3, 3)),
    "one dimension": (nn.ConvTranspose1d(6, 4, 4, 2, 1), (2, 6, 9)),
    "three dimensions": (nn.ConvTranspose3d(4, 2, 3, 2, 1, output_padding=1), (1, 4, 2, 3, 2)),
}


@pytest.mark.parametrize(
    "layer, shape",
    sampled([*PATCHES.values(), *TRANSPOSED.values()], 3, several=True),
    ids=[*PATCHES, *TRANSPOSED],
)
def test_it_trains_as_eager(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    first = getattr(nn, f"Conv{len(shape) - 2}d")(shape[1], shape[1], 1)
    agrees(nn.Sequential(first, nn.Tanh(), layer), torch.randn(shape))


@pytest.mark.parametrize("name", PATCHES)
def test_patches_are_products(name: str) -> None:
    """Or every test above passes without looking."""
    layer, shape = PATCHES[name]
    (weight,) = (p.detach().numpy() for n, p in layer.named_parameters() if n == "weight")
    stride = layer.stride
    turned = jnp.moveaxis(jnp.zeros(shape), 1, -1)
    if isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        none = (0,) * len(stride)
        with backwards():
            traced = jax.make_jaxpr(
                lambda x: room.convolve_transposed_last(
                    x, weight, None, stride, none, none, 1, layer.dilation
                )
            )(turned)
    else:
        pads = [(0, 0)] * len(stride)
        traced = jax.make_jaxpr(
            lambda x: room.convolve_last(x, weight, None, stride, pads, layer.dilation, 1)
        )(turned)
    assert "dot_general" in str(traced) and "conv_general" not in str(traced)


@pytest.mark.parametrize("name", ["as ConvNeXt's", "something left over"])
def test_of_one_example_without_a_batch(name: str) -> None:
    layer, shape = PATCHES[name]
    torch.manual_seed(0)

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x[0])

    agrees(One(), torch.randn(shape))


def test_half_precision_rounds_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.ConvTranspose2d(16, 3, 4, 4)).to(
        torch.bfloat16
    )
    x = torch.randn(2, 3, 16, 16, dtype=torch.bfloat16)
    step = detente.compile(
        model, lambda m, b: (m(b) - b).float().square().mean(), torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=x, cache=False, quiet=True,
    )  # fmt: skip
    step(x).item()
    assert step.settled().ok, step.settled()


def test_derivatives_forwards() -> None:
    """Nobody's ``custom_vjp`` stands in the way of a Hessian."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(2, 2, 3, 2), nn.Tanh(), nn.Conv2d(2, 1, 2, 2)).double()
    x = torch.randn(1, 2, 2, 2).double()
    call = detente.functional(model, lambda m, b: m(b).pow(2).sum(), x)

    def eager(flat: torch.Tensor) -> torch.Tensor:
        values = torch.split(flat, [p.numel() for p in model.parameters()])
        named = {n: v.reshape(p.shape) for (n, p), v in zip(model.named_parameters(), values, strict=True)}
        return torch.func.functional_call(model, named, x).pow(2).sum()

    with jax.enable_x64(True):
        found = jax.hessian(call)(call.params, x.numpy())
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    wanted = torch.func.hessian(eager)(flat)
    rows = [
        torch.cat([torch.tensor(found[a][b]).reshape(p.numel(), -1) for b, _ in model.named_parameters()], 1)
        for a, p in model.named_parameters()
    ]
    assert torch.allclose(torch.cat(rows), wanted, rtol=1e-8, atol=1e-10)
