"""Regions that export drops silently, held to float64; the suite holds the same bodies to float32 on any subject."""

from __future__ import annotations

import jax
import pytest
import torch
from suite import regions
from suite.nets import Net, X
from torch.utils.checkpoint import checkpoint

from detente import bridge
from detente.bridge.capture.capture import capture
from detente.bridge.lower.precision import x64
from detente.bridge.program.program import Program
from detente.bridge.random.keys import step_key


def loss(model, batch):
    return model(batch)


def two_checkpoints(self, x):
    y = checkpoint(lambda t: torch.tanh(self.linear(t)), x, use_reentrant=False)
    return (y * checkpoint(self.linear, y, use_reentrant=True)).sum()


def no_grad_and_a_write(self, x):
    with torch.no_grad():
        held = self.linear(x)
        held.mul_(2)
    return (self.linear(x) * held).sum()


def reentrant_of_what_takes_no_gradient(self, x):
    """torch gives the parameters inside none."""
    return (self.linear(x) * checkpoint(self.linear, x, use_reentrant=True)).sum()


BODIES = [
    reentrant_of_what_takes_no_gradient,
    no_grad_and_a_write,
    regions.enable_grad_inside,
    regions.detach,
    regions.function,
    regions.function_of_two,
    regions.function_in_no_grad,
    two_checkpoints,
    regions.hook,
    regions.frozen,
    regions.item,
    regions.weight_norm,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_region_keeps_its_meaning(body, same_function):
    same_function(Net(body), loss, X, steps=2)


def test_checkpoint_is_recomputed():
    """The program has one remat per region, not only the right numbers."""
    captured = capture(Net(two_checkpoints), loss, X)
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
    model = Net(regions.detach)
    model.linear.weight.register_hook(lambda grad: grad * 2)
    model.register_full_backward_hook(lambda module, grads, outputs: None)
    with pytest.raises(bridge.Refused) as raised:
        capture(model, loss, X)
    assert [r.code for r in raised.value.reasons] == ["hook", "hook"]
    assert all(r.where.file == __file__ for r in raised.value.reasons)
