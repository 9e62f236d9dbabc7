"""In bfloat16 no product takes float32, forward or backward, and no long sum adds in bfloat16: what is given to XLA."""

from __future__ import annotations

import re

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.lower.contract import contracted
from detente.bridge.lower.precision import x64
from detente.bridge.program.program import Program
from detente.bridge.random.keys import step_key
from detente.judge.rules.narrow_sums import LONG_SUM
from detente.programs.count import count_program

X = torch.linspace(-1, 1, 2 * 5 * 8).view(2, 5, 8)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.mix = nn.Linear(8, 24), nn.Linear(8, 8, bias=False)

    def forward(self, x):
        q, k, v = self.heads(x).chunk(3, -1)
        return self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.full((8, 8), 0.1)), nn.Parameter(torch.ones(8))

    def forward(self, x):
        y = torch.addmm(self.b, x[0], self.w, beta=0.5, alpha=2.0)
        y = torch.einsum("ij,jk->ik", y, self.w) + torch.tensordot(x[1], self.w, dims=([1], [0]))
        return torch.bmm(x, self.w.expand(2, 8, 8)) + y @ self.w


MODELS = {
    "linear": lambda: nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)),
    "attention": Attention,
    "several": Several,
    "lstm": lambda: nn.LSTM(8, 4, batch_first=True),
}
PRODUCT = re.compile(r"dot_general.*?: \(tensor<[\dx]*(\w+)>, tensor<[\dx]*(\w+)>\)")


def plain(model, x):
    out = model(x)
    return (out[0] if isinstance(out, tuple) else out).float().square().mean()


def under_autocast(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        return plain(model, x)


def backward(model, loss, batch):
    """The StableHLO of all gradients."""
    captured = capture(model, loss, batch)
    program = Program(captured.graph)
    weights = {n: jax.numpy.asarray(t.detach().float().numpy()) for n, t in captured.weights.tensors.items()}
    weights = {n: w.astype(str(captured.weights.tensors[n].dtype)[6:]) for n, w in weights.items()}
    inputs = jax.numpy.asarray(batch.float().numpy()).astype(str(batch.dtype)[6:])
    return jax.jit(program.gradients(program.connected)).lower(weights, [inputs], step_key(0, 0)).as_text()


# torch's autocast on the CPU leaves recurrent layers as they are, and cannot run tensordot.
CASES = [*((kind, plain) for kind in MODELS), ("linear", under_autocast), ("attention", under_autocast)]


@pytest.mark.parametrize(("kind", "loss"), CASES, ids=[f"{kind}-{loss.__name__}" for kind, loss in CASES])
def test_operands_of_every_product_are_narrow(kind, loss):
    torch.manual_seed(0)
    model, batch = MODELS[kind](), X
    if loss is plain:
        model, batch = model.bfloat16(), batch.bfloat16()
    text = backward(model, loss, batch)
    found = [dtype for pair in PRODUCT.findall(text) for dtype in pair]
    assert len(found) >= 6 and set(found) == {"bf16"}, found


class Broadcasts(nn.Module):
    """Every way in which one value reaches all rows, which a derivative adds up again."""

    def __init__(self):
        super().__init__()
        self.b = nn.ParameterList(nn.Parameter(torch.ones(8)) for _ in range(12))
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        b, many = self.b, x.shape[0]
        x = self.layer(self.norm(x * b[0] + b[1])) + b[2].expand(many, 8) + b[3].repeat(many, 1)
        x = x + b[4].repeat_interleave(many).view(8, many).T + torch.where(x > 0, b[5], x)
        x = x + torch.broadcast_to(b[6], x.shape) + x.new_zeros(x.shape).copy_(b[7]) + b[8].mean()
        rows = torch.arange(many)
        x = (
            x
            + torch.zeros_like(x).index_put((rows,), b[9])
            + torch.take_along_dim(b[10][None], rows[:, None] % 8, 1)
        )
        return x + b[11][None].masked_scatter(x > 0, x)


def summed(model, x):
    return model(x).float().square().mean()


def test_no_long_sum_adds_narrow():
    with x64():
        text = backward(Broadcasts().bfloat16(), summed, torch.linspace(-1, 1, 480).view(60, 8).bfloat16())
    assert "bf16" in text
    found = count_program(text.encode(), "stablehlo").narrow_sums
    assert max(found.values(), default=0) < LONG_SUM, found


def test_its_derivatives_are_a_products():
    """Of both orders and both modes, to the rounding of bfloat16; float32 is untouched."""

    def times(a, b, kind):
        return jax.numpy.matmul(a, b, preferred_element_type=kind)

    def value(dtype):
        def f(a, b):
            return (
                contracted(times, a.astype(dtype), b.astype(dtype), "float32").astype("float32") ** 2
            ).sum()

        return f

    a, b = jax.numpy.arange(6.0).reshape(2, 3) / 4, jax.numpy.arange(6.0).reshape(3, 2) / 8
    narrow, full = value("bfloat16"), value("float32")
    for transform in (
        lambda f: jax.grad(f, (0, 1)),
        lambda f: jax.jacfwd(f, (0, 1)),
        lambda f: jax.hessian(f, (0, 1)),
        lambda f: lambda a, b: jax.vmap(jax.grad(f, 1), (0, None))(jax.numpy.stack([a, a + 1]), b),
    ):
        ours, theirs = jax.tree.leaves(transform(narrow)(a, b)), jax.tree.leaves(transform(full)(a, b))
        for one, other in zip(ours, theirs, strict=True):
            assert jax.numpy.allclose(one, other, rtol=2e-2, atol=2e-2)
    assert "custom_jvp" not in str(jax.make_jaxpr(full)(a, b))
