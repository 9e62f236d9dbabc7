"""``autograd.Function`` in the forms that people write: what ``ctx`` offers, and what backward may leave out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Linear(torch.autograd.Function):
    """Gradients for those alone that need one."""

    @staticmethod
    def forward(ctx, x, weight, bias, scale):
        ctx.save_for_backward(x, weight)
        ctx.scale = scale
        return (x @ weight.t() + bias) * scale

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad * ctx.scale
        into_x = grad @ weight if ctx.needs_input_grad[0] else None
        into_weight = grad.t() @ x if ctx.needs_input_grad[1] else None
        into_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        assert not ctx.needs_input_grad[3]
        return into_x, into_weight, into_bias, None


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad.clamp(-0.1, 0.1)


class Parts(torch.autograd.Function):
    """Two outputs of which one may get no gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, sine, cosine):
        (x,) = ctx.saved_tensors
        parts = [g * d for g, d in ((sine, x.cos()), (cosine, -x.sin())) if g is not None]
        return sum(parts) if parts else None


class Outer(torch.autograd.Function):
    """Calls another Function on the way, in both directions."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Clipped.apply(x) * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return Clipped.apply(grad * 2) * x.cos()


class Rounded(torch.autograd.Function):
    """With ``setup_context``, an output that is no tensor, and a straight-through gradient."""

    @staticmethod
    def forward(x, bits):
        return torch.round(x * 2**bits) / 2**bits, bits

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.bits = inputs[1]

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.bits, None


class Shifted(torch.autograd.Function):
    """Its gradient of the shift is wider than the shift: torch sums it."""

    @staticmethod
    def forward(ctx, x, shift):
        return x + shift

    @staticmethod
    def backward(ctx, grad):
        return grad, 2 * grad


class Net(nn.Module):
    def __init__(self, through):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)
        self.through = through

    def forward(self, x):
        return self.through(self, self.first(x).tanh())


def linear(self, y):
    return Linear.apply(y, self.last.weight, self.last.bias, 0.5)


def linear_on_data(self, y):
    return self.last(y) + Linear.apply(y.detach(), self.last.weight, self.last.bias.detach(), 0.5)


THROUGH = {
    "gradients that are asked for": linear,
    "gradients that are not": linear_on_data,
    "once_differentiable": lambda self, y: self.last(Clipped.apply(y)),
    "both outputs": lambda self, y: self.last(sum(Parts.apply(y))),
    "one output": lambda self, y: self.last(Parts.apply(y)[1]),
    "a gradient of what was broadcast": lambda self, y: self.last(
        Shifted.apply(Shifted.apply(y, self.first.bias), self.first.weight[:1, :1])
    ),
    "one inside another": lambda self, y: self.last(Outer.apply(y)),
    "the same twice": lambda self, y: self.last(Clipped.apply(Clipped.apply(y) * 3)),
    "setup_context": lambda self, y: self.last(Rounded.apply(y, 3)[0]),
}


class Marked(torch.autograd.Function):
    """An output that is marked: what comes to it is zeros, or None where those are not asked for."""

    @staticmethod
    def forward(ctx, x, zeros):
        size = x.abs()
        ctx.mark_non_differentiable(size)
        ctx.set_materialize_grads(zeros)
        return x * 2, size

    @staticmethod
    def backward(ctx, grad, size):
        return grad * 5 if size is None else grad + size, None


class Total(torch.autograd.Function):
    """Tells an output that nothing reads (None) from one that gets zeros."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x.sum()

    @staticmethod
    def backward(ctx, grad, total):
        return grad * 3 if total is None else grad * 7


def weighed(self, y, zeros):
    twice, size = Marked.apply(y, zeros)
    return self.last(twice * size)


THROUGH |= {
    "a marked output": lambda self, y: weighed(self, y, True),
    "a marked output and no zeros": lambda self, y: weighed(self, y, False),
    "no zeros for what is not read": lambda self, y: self.last(Total.apply(y)[0]),
}


@pytest.mark.parametrize("name", THROUGH)
def test_a_function_is_torchs(name, same_function):
    same_function(Net(THROUGH[name]), lambda m, b: F.mse_loss(m(b), b[:, :2]) * 9, X)
