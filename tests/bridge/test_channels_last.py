"""Values with their channels last between the operators of a convolutional net: the same numbers as torch's, whoever
reads them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detente import bridge
from detente.bridge.lower import channels_last
from detente.bridge.lower.driver import load_table
from detente.bridge.lower.table import TABLE
from tests.sampled import sampled


def squared(model: Any, batch: Any) -> torch.Tensor:
    made = model(batch)
    return sum(m.pow(2).mean() for m in (made if isinstance(made, tuple) else (made,)))  # type: ignore[return-value]


def agrees(model: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    """Gradients and buffers of a step in float64, against eager; returns the step."""
    model, x = model.double(), x.double()
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"certificate": "none", "cache": False, "seed": 0, **options}
    step = bridge.compile(model, squared, optimizer, example_batch=x, **options)
    found = step.gradients(x)
    squared(eager, x).backward()
    for name, parameter in eager.named_parameters():
        near(found[name], parameter.grad, name)
    loss = float(step(x))
    assert loss == pytest.approx(float(squared(copy.deepcopy(eager), x)), rel=1e-9)
    step.sync_to_torch()
    for (name, mine), theirs in zip(model.named_buffers(), eager.buffers(), strict=True):
        near(mine, theirs, name)
    return step


def near(mine: Any, theirs: Any, name: str) -> None:
    # A bias in front of a batch norm has no gradient but rounding.
    scale = theirs.double().pow(2).mean().sqrt().clamp(min=1e-5)
    error = (mine.double() - theirs.double()).pow(2).mean().sqrt() / scale
    assert error < 1e-9, f"{name}: {float(error):.2g}"


class Written(nn.Module):
    """A module from a function of it and its input."""

    def __init__(self, parts: dict[str, nn.Module], forward: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.written = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.written(self, x)


def block(inside: int, outside: int, stride: int = 1) -> nn.Module:
    parts = {
        "one": nn.Conv2d(inside, outside, 1, stride, bias=False), "a": nn.BatchNorm2d(outside),
        "three": nn.Conv2d(outside, outside, 3, padding=1), "b": nn.BatchNorm2d(outside),
        "short": nn.Conv2d(inside, outside, 1, stride, bias=False),
    }  # fmt: skip
    return Written(parts, lambda m, x: F.relu(m.b(m.three(F.relu(m.a(m.one(x))))) + m.short(x)))


def squeeze(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.conv(x)
    gate = torch.sigmoid(m.up(F.silu(m.down(y.mean((2, 3), keepdim=True)))))
    return y * gate


def unet(m: Any, x: torch.Tensor) -> torch.Tensor:
    left = F.relu(m.down(x))
    low = F.gelu(m.low(F.max_pool2d(left, 2)))
    return m.out(torch.cat([m.up(low), left], dim=1))


def several(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return y, F.max_pool2d(y, 2), F.adaptive_avg_pool2d(y, (2, 1)), y[:, 1], y.sum(1)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "bottlenecks": (lambda: nn.Sequential(block(3, 8), block(8, 8, 2), nn.Flatten(), nn.Linear(128, 4)), (2, 3, 8, 8)),
    "a stem of seven with a pool": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 7, 2, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        (2, 3, 17, 15),
    ),
    "squeeze and excite": (
        lambda: Written({"conv": nn.Conv2d(3, 8, 3), "down": nn.Conv2d(8, 2, 1), "up": nn.Conv2d(2, 8, 1)}, squeeze),
        (2, 3, 7, 6),
    ),
    "a U-net with a concatenation": (
        lambda: Written(
            {"down": nn.Conv2d(2, 4, 3, padding=1), "low": nn.Conv2d(4, 4, 3, padding=1),
             "up": nn.ConvTranspose2d(4, 4, 2, 2), "out": nn.Conv2d(8, 2, 1)}, unet,
        ),
        (2, 2, 8, 6),
    ),
    "depthwise, grouped, dilated": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, groups=4, padding=1), nn.Conv2d(8, 8, 7, groups=8, padding="same"),
            nn.Conv2d(8, 4, 3, dilation=2, groups=2), nn.Conv2d(4, 4, 1, groups=2),
        ),
        (2, 4, 9, 8),
    ),
    "a kernel of one with padding and stride": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1, padding=1), nn.Conv2d(4, 5, 1, stride=(2, 3))), (2, 3, 6, 7),
    ),
    "one dimension": (
        lambda: nn.Sequential(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), nn.Conv1d(6, 4, 1), nn.MaxPool1d(2)), (2, 3, 11),
    ),
    "three dimensions": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.MaxPool3d(2)), (2, 2, 5, 6, 4),
    ),
    "a picture without a batch": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), (3, 8, 8)),
    "what one dimension made, pooled as a picture": (
        lambda: Written({"conv": nn.Conv1d(3, 6, 3)}, lambda m, x: F.max_pool2d(m.conv(x), 2)), (4, 3, 10),
    ),
    "an affine map by channel": (
        lambda: Written({"conv": nn.Conv2d(3, 4, 3), "scale": Scale()}, lambda m, x: m.scale(m.conv(x))), (2, 3, 6, 5),
    ),
    "patches to rows": (
        lambda: Written(
            {"conv": nn.Conv2d(3, 8, 4, 4), "norm": nn.LayerNorm(8)},
            lambda m, x: m.norm(m.conv(x).flatten(2).transpose(1, 2)),
        ),
        (2, 3, 8, 8),
    ),
    "channels last in torch as well": (
        lambda: Written(
            {"conv": nn.Conv2d(3, 8, 3), "norm": nn.LayerNorm(8), "fc": nn.Linear(8, 8)},
            lambda m, x: m.fc(m.norm(m.conv(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2) * 2,
        ),
        (2, 3, 6, 5),
    ),
    "results of several kinds, indices among them": (
        lambda: Written(
            {"conv": nn.Conv2d(2, 4, 3)},
            lambda m, x: several(m.conv(x)),
        ),
        (2, 2, 8, 6),
    ),
    "pooled and put back by its indices": (
        lambda: Written(
            {"conv": nn.Conv2d(2, 4, 3, padding=1)},
            lambda m, x: F.max_unpool2d(*F.max_pool2d(m.conv(x), 2, return_indices=True), 2),
        ),
        (2, 2, 8, 6),
    ),
    "a kernel that is computed": (
        lambda: Written(
            {"a": nn.Conv2d(3, 4, 3)},
            lambda m, x: F.conv2d(x, m.a(x[:, :, :5, :5]).mean(0, keepdim=True).expand(2, 4, 3, 3)[:, :3]),
        ),
        (2, 3, 7, 7),
    ),
    "layer norm over pictures, group norm, instance norm": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4), nn.LayerNorm([4, 4, 5])
        ),
        (2, 3, 6, 7),
    ),
}  # fmt: skip


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by, self.shift = nn.Parameter(torch.randn(4, 1, 1)), nn.Parameter(torch.randn(1, 4, 1, 1))
        self.rows = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by + self.shift - self.rows + 0.5


@pytest.mark.parametrize("name", sampled(NETS, 2))
def test_gradients_and_buffers_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    make, shape = NETS[name]
    agrees(make(), torch.randn(shape))


def test_convolutions_really_give_their_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or every test above passes without looking."""
    seen: list[Any] = []
    plain = channels_last.each
    monkeypatch.setattr("detente.bridge.lower.driver.each", lambda *a: seen.append(a[1].node.op) or plain(*a))
    torch.manual_seed(0)
    agrees(nn.Sequential(block(3, 4)), torch.randn(2, 3, 6, 6))
    # Two programs were traced: the gradients alone, and the step.
    assert seen.count("aten.relu.default") == 4 and seen.count("aten.add.Tensor") == 2


@pytest.mark.parametrize("form", sampled(["unrolled", "rolled", "rolled+full", "inside"], 2))
def test_blocks_in_a_loop(form: str) -> None:
    torch.manual_seed(0)
    agrees(nn.Sequential(*(block(4, 4) for _ in range(8))), torch.randn(2, 4, 6, 6), form=form)


def test_a_block_that_is_computed_again() -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = Written(
        {"a": nn.Conv2d(3, 4, 3), "b": nn.Conv2d(4, 4, 1)},
        lambda m, x: checkpoint(lambda y: F.relu(m.b(y)) * 2, F.relu(m.a(x)), use_reentrant=False),
    )
    agrees(model, torch.randn(2, 3, 8, 8))


def test_evaluation_and_running_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(block(3, 4), block(4, 4))
    agrees(model.eval(), torch.randn(2, 3, 6, 6))


def test_dropout_leaves_out_what_it_left_out_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.ReLU(), nn.Dropout2d(0.5), nn.Conv2d(8, 2, 1)
        )
        x = torch.randn(2, 3, 8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = bridge.compile(model, squared, optimizer, example_batch=x, seed=3, cache=False)
        return [float(step(x)) for _ in range(3)]

    mine = losses()
    monkeypatch.setattr("detente.bridge.lower.ops.conv.wanted", lambda: False)
    assert mine == pytest.approx(losses(), rel=1e-6)


def test_a_lowering_of_the_users_is_given_torchs_order(monkeypatch: pytest.MonkeyPatch) -> None:
    load_table()
    monkeypatch.setitem(TABLE, "aten.relu.default", TABLE["aten.relu.default"])
    shapes = []

    def mine(call: Any, x: Any) -> Any:
        shapes.append(x.shape)
        return jnp.where(x > 0, x, 0)

    bridge.extend("aten.relu.default", mine, replace=True)
    torch.manual_seed(0)
    agrees(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 1)), torch.randn(2, 3, 7, 6))
    assert set(shapes) == {(2, 5, 5, 4)}


@pytest.mark.parametrize("name", sorted(channels_last.EACH))
def test_what_computes_each_element_by_itself_does(name: str) -> None:
    """In torch's order and with channels last, by the entry itself."""
    from detente.bridge.graph import Aval, Node

    load_table()
    entry = TABLE.get(name)
    if entry is None:
        pytest.fail(f"{name} is in EACH and has no lowering")
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.uniform(0.5, 2, (2, 3, 4, 5)), jnp.float32) for _ in range(2))
    operands = (x, y) if name.endswith(".Tensor") else (x, 1.5) if name.endswith(".Scalar") else (x,)
    call = _Call(Node(0, name, (), (), Aval((2, 3, 4, 5), "float32")))
    plain = entry.lower(call, *operands)
    turned = channels_last.each(
        entry.lower, call, [channels_last.last(o) if isinstance(o, jax.Array) else o for o in operands], {}
    )
    assert turned is not None and turned.array.shape == (2, 4, 5, 3)
    np.testing.assert_array_equal(turned.plain(), plain)


class _Call:
    def __new__(cls, node: Any) -> Any:
        from detente.bridge.lower.driver import NodeCall, Trace
        from detente.bridge.lower.faults import Sites

        return NodeCall(node, Trace(Sites()))


def test_derivatives_of_every_order_and_for_every_example() -> None:
    torch.manual_seed(0)
    conv, one = nn.Conv2d(2, 3, 3).double(), nn.Conv2d(3, 1, 1).double()
    model = nn.ModuleList([conv, one])
    x = torch.randn(4, 2, 5, 5, dtype=torch.float64)

    def penalty(m: Any, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone().requires_grad_(True)
        made = m[1](F.softplus(m[0](batch))).sum()
        (slope,) = torch.autograd.grad(made, batch, create_graph=True)
        return slope.pow(2).mean()

    def each(m: Any, batch: torch.Tensor) -> torch.Tensor:
        def one(row: torch.Tensor) -> torch.Tensor:
            return m[1](torch.tanh(m[0](row[None]))).sum()

        slopes = torch.func.vmap(torch.func.grad(one))(batch)
        _, tangent = torch.func.jvp(lambda b: m[1](F.silu(m[0](b))).sum(), (batch,), (batch,))
        return slopes.pow(2).mean() + tangent

    for loss in (penalty, each):
        mine = copy.deepcopy(model)
        step = bridge.compile(
            mine,
            loss,
            torch.optim.SGD(mine.parameters(), lr=0.1),
            example_batch=x,
            certificate="none",
            cache=False,
        )
        theirs = copy.deepcopy(model)
        loss(theirs, x).backward()
        found = step.gradients(x)
        for name, parameter in theirs.named_parameters():
            near(
                found[name], parameter.grad, f"{loss.__name__} {name}"
            ) if parameter.grad is not None else None
