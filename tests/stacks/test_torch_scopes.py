"""Operators of PyTorch belong to the module in whose forward they, or their node of autograd, were made."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from detente.programs.count import count_program, read_program
from detente.programs.operators import seconds_of
from detente.programs.parts import coverage, parts, sites
from detente.stacks.torch_scopes import Scopes
from detente.stacks.torch_trace import STEPS, operators_of


class Attention(torch.nn.Module):
    """Attention that is a function, between two modules: its backward is its own, not that of ``out``."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.into(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)


class Model(torch.nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.h = torch.nn.ModuleList([Attention(), Attention()])
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        for layer in self.h:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x))
        return self.norm(x)


def traced(model, step):
    data = operators_of(step, model, timed=False).data
    module = read_program(data, "operators")
    return data, module, {(p.path, p.direction): f for p, f in parts(sites(module)).items()}


def trained(model):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(2, 4, 8)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    return step


def test_a_function_between_modules_is_its_own_in_the_backward() -> None:
    model = Model()
    _, module, table = traced(model, trained(model))
    assert coverage(sites(module))["name"] == 1.0
    softmax = [p for p, f in table.items() if f.opcodes["aten._softmax_backward_data.default"]]
    assert softmax == [("h.1", "backward"), ("h.0", "backward")]
    # Of each linear layer the gradient of its weights, and of its input but for the first.
    assert table["h.1.into", "backward"].opcodes["aten.mm.default"] == 2
    assert table["h.0.into", "backward"].opcodes["aten.mm.default"] == 1
    assert table["norm", "backward"].opcodes["aten.native_layer_norm_backward.default"] == 1
    assert table["", "optimizer"].opcodes["aten._fused_adamw_.default"] == 1


def test_what_is_computed_again_is_told_apart() -> None:
    model = Model(recompute=True)
    _, _, table = traced(model, trained(model))
    assert table["h.0.into", "remat"].opcodes["aten.addmm.default"] == 1
    assert table["h.0.into", "forward"].opcodes == table["h.0.into", "remat"].opcodes


def test_products_are_counted_and_operators_timed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8))
    x = torch.ones(3, 4)
    capture = operators_of(lambda: model(x), model, timed=True)
    assert count_program(capture.data, "operators").flops == 2 * 3 * 4 * 8
    assert all(s > 0 for s in seconds_of(capture.data).values())


def test_a_step_that_changes_has_no_times() -> None:
    model, turns = torch.nn.Linear(4, 4), iter(range(100))

    def step():
        x = model(torch.ones(1, 4))
        # Behind the steps that nobody watches.
        return x.tanh() if next(turns) == STEPS + 3 else x.exp()

    assert seconds_of(operators_of(step, model, timed=True).data) == {}


def test_attention_on_a_cpu_counts_its_products() -> None:
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    model = torch.nn.Identity()

    def step():
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()

    data = operators_of(step, model, timed=False).data
    forward = 2 * (2 * 2 * 4 * 4 * 8)
    assert count_program(data, "operators").flops == forward + forward // 2 * 5


def test_what_is_private_of_inductor_is_where_it_was() -> None:
    from detente.stacks import inductor_private

    assert inductor_private.self_test() == []


def test_no_hook_stays_behind() -> None:
    model = torch.nn.Linear(2, 2)
    before = len(torch.nn.modules.module._global_forward_hooks)
    with pytest.raises(RuntimeError), Scopes(model).watched():
        model(torch.ones(3))
    assert len(torch.nn.modules.module._global_forward_hooks) == before


def test_operands_are_earlier_operations() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    rows = json.loads(operators_of(lambda: model(torch.ones(2, 4)), model, timed=False).data)["operations"]
    by_op = {row["op"]: k for k, row in enumerate(rows)}
    assert rows[by_op["aten.relu.default"]]["operands"] == [by_op["aten.addmm.default"]]
