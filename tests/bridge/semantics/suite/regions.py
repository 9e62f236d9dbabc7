"""What export, or interception, drops silently: regions, custom backward passes, hooks, marks on parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from suite.case import Case, Observed
from suite.judge import holds, same, within
from suite.nets import body, model


class Hundred(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor + 0 * x, None


class TwoOut(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y, x.argmax(dim=-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        x, y = ctx.saved_tensors
        return grad * y, 3 * grad * x


def no_grad(self, x):
    with torch.no_grad():
        held = self.linear(x)
    return (self.linear(x) * held).sum()


def enable_grad_inside(self, x):
    with torch.no_grad():
        held = self.linear(x)
        with torch.enable_grad():
            still = self.linear(x) ** 2
        held = held * 3
    return (still * held).sum()


def detach(self, x):
    y = self.linear(x)
    return (y * y.detach()).sum()


def function(self, x):
    return Hundred.apply(self.linear(x), 100.0).sum()


def function_of_two(self, x):
    product, index = TwoOut.apply(self.linear(x), self.frozen(x) * self.linear.bias)
    return (product * index[:, None]).sum()


def function_in_no_grad(self, x):
    with torch.no_grad():
        held = Hundred.apply(self.linear(x), 100.0)
    return (held * self.linear(x)).sum()


def checkpointed(self, x):
    y = checkpoint(lambda t: torch.tanh(self.linear(t)), x, use_reentrant=False)
    return (y * y).sum()


def checkpointed_reentrant(self, x):
    y = self.linear(x)
    return checkpoint(lambda t: torch.tanh(t) * self.linear.bias, y, use_reentrant=True).sum()


def hook(self, x):
    y = self.linear(x)
    z = y * 2
    y.register_hook(lambda grad: grad * 3 + 1)
    y.register_hook(lambda grad: grad.clamp(max=5.0))
    return (z * y).sum()


def autocast(self, x):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = self.linear(x)
        z = F.layer_norm(y, (4,))
    return (y * z).float().sum(), [y, z]


def frozen(self, x):
    return self.frozen(self.linear(x)).pow(2).sum()


def item(self, x):
    return self.linear(x).sum() * self.frozen.weight.sum().item()


def weight_norm(self, x):
    weight = torch._weight_norm(self.linear.weight, self.frozen.weight[:, :1].abs(), 0)
    return weight.pow(2).sum() + (self.linear(x) @ weight).sum()


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))

    def forward(self, x):
        return self.layer(x).pow(2).sum()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return F.cross_entropy(self.head(self.embed(ids)), ids)


def constant(self, x):
    scale = torch.tensor([1.0, -2.0, 3.0, 0.5], device=x.device)
    scale[0] = 4.0
    return (self.linear(x) * scale).sum()


def recomputes(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
    """The program has a region that the backward pass runs again."""
    text = ours[0].program
    found = "checkpoint[" in text or "remat" in text
    return "" if found else "nothing is recomputed: the region's mark is lost"


def _case(name: str, source: str, torchs: str, function: Any, **more: Any) -> Case:
    return Case(name, "regions", source, torchs, body(function), **{"judge": same, **more})


CASES = (
    _case("no_grad region", "4.2, 4.4", "no gradient flows through the region", no_grad),
    _case("enable_grad inside no_grad", "4.4", "flows through the inner region alone", enable_grad_inside),
    _case("detach", "4.4", "no gradient", detach),
    _case("autograd.Function", "4.2, 4.4", "its own backward", function),
    _case("autograd.Function of two outputs, setup_context", "4.4", "its own backward", function_of_two),
    _case("autograd.Function inside no_grad", "4.4", "no gradient", function_in_no_grad),
    _case(
        "checkpoint",
        "4.2, 4.4",
        "recomputed in the backward pass",
        checkpointed,
        judge=holds(values=same, recomputed=recomputes),
        program=True,
    ),
    _case(
        "checkpoint, reentrant",
        "4.2",
        "recomputed in the backward pass",
        checkpointed_reentrant,
        judge=holds(values=same, recomputed=recomputes),
        program=True,
    ),
    _case("tensor.register_hook", "4.4", "the hooks change the gradient, in order", hook),
    _case("torch.autocast", "4.2, 4.4", "linear in bfloat16, its result too", autocast, judge=within(2e-2)),
    _case("frozen parameters", "4.4", "gradients through them, none of them", frozen),
    _case(".item() as a factor", "4.4", "a number of the current weights", item),
    _case("weight_norm", "4.4", "gradient through the norm", weight_norm),
    _case("torch.tensor constant in forward, written", "4.4", "a fresh tensor in every step", constant),
    Case(
        "spectral_norm",
        "regions",
        "4.4",
        "power iteration under no_grad, written to buffers",
        model(Spectral, [torch.linspace(-1.0, 1.0, 12).reshape(3, 4)] * 2),
        same,
    ),
    Case(
        "tied weights",
        "regions",
        "4.4",
        "one gradient, the sum",
        model(Tied, [torch.tensor([0, 3, 6, 3])]),
        same,
    ),
)
