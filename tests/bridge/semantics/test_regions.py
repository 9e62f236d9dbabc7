"""What export drops silently: no_grad, autograd.Function, checkpoint, hooks, autocast, frozen and unused weights."""

from __future__ import annotations

import jax
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from detente import bridge
from detente.bridge.capture.export import capture
from detente.bridge.lower.precision import x64
from detente.bridge.program import Program
from detente.bridge.random.keys import step_key

X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


def loss(model, batch):
    return model(batch)


class Net(nn.Module):
    """One linear layer (and a frozen one); ``body(self, x)`` is the case."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.frozen, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.body = body

    def forward(self, x):
        return self.body(self, x)


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
        held.mul_(2)
    return (self.linear(x) * held).sum()


def enable_grad_inside(self, x):
    with torch.no_grad():
        held = self.linear(x)
        with torch.enable_grad():
            open_ = self.linear(x) ** 2
        held = held * 3
    return (open_ * held).sum()


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
    return (y * checkpoint(self.linear, y, use_reentrant=True)).sum()


def hook(self, x):
    y = self.linear(x)
    z = y * 2
    y.register_hook(lambda grad: grad * 3 + 1)
    y.register_hook(lambda grad: grad.clamp(max=5.0))
    return (z * y).sum()


def frozen_and_unused(self, x):
    return self.frozen(self.linear(x)).pow(2).sum()


def scalar_item(self, x):
    return self.linear(x).sum() * self.frozen.weight.sum().item()


def weight_norm(self, x):
    return (
        torch._weight_norm(self.linear.weight, self.frozen.weight[:, :1].abs(), 0).sum()
        + self.linear(x).sum()
    )


CASES = [
    no_grad,
    enable_grad_inside,
    detach,
    function,
    function_of_two,
    function_in_no_grad,
    checkpointed,
    hook,
    frozen_and_unused,
    scalar_item,
    weight_norm,
]


@pytest.mark.parametrize("body", CASES, ids=lambda b: b.__name__)
def test_region_keeps_its_meaning(body, same_function):
    same_function(Net(body), loss, X, steps=2)


def test_checkpoint_is_recomputed():
    """The program has one remat per region, not only the right numbers."""
    captured = capture(Net(checkpointed), loss, X)
    program = Program(captured.graph)
    values = {n: t.detach().numpy() for n, t in captured.weights.tensors.items()}
    with x64():
        text = str(jax.make_jaxpr(program.gradients(program.connected))(values, [X.numpy()], step_key(0, 0)))
    assert text.count("remat") == 2 or text.count("checkpoint[") == 2


def test_autocast_computes_in_bfloat16_where_torch_does():
    def body(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
            z = torch.nn.functional.layer_norm(y, (4,))
        return (y * z).float().sum()

    model = Net(body)
    step = bridge.compile(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=X)
    ops = [
        (n.op, n.out.dtype) for n in step.programs[0].captured.graph.nodes if n.op == "aten.linear.default"
    ]
    assert ops == [("aten.linear.default", "bfloat16")]
    step(X), step(X)
    assert step.certificate.ok, str(step.certificate)


def test_a_hook_that_only_looks_is_refused():
    seen = []

    def body(self, x):
        y = self.linear(x)
        y.register_hook(seen.append)
        return y.sum()

    with pytest.raises(bridge.Refused, match="hook"):
        capture(Net(body), loss, X)


def test_hooks_on_parameters_and_modules_are_refused():
    model = Net(detach)
    model.linear.weight.register_hook(lambda grad: grad * 2)
    model.register_full_backward_hook(lambda module, grads, outputs: None)
    with pytest.raises(bridge.Refused) as raised:
        capture(model, loss, X)
    assert [r.code for r in raised.value.reasons] == ["hook", "hook"]
    assert all(r.where.file == __file__ for r in raised.value.reasons)
