"""An accelerator computes the powers of step counts once, whatever the number of parameters, and each reads its own."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import pytest
import torch

import detente
from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref, Where
from detente.bridge.optim.halves import split
from detente.bridge.optim.rule import trace


class Several(torch.nn.Module):
    """Six parameters of six shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, 7),
            torch.nn.Tanh(),
            torch.nn.Linear(7, 3),
            torch.nn.Tanh(),
            torch.nn.Linear(3, 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def powers(model: torch.nn.Module, kind: type[torch.optim.Optimizer], platform: str) -> int:
    """Powers of float64 in the update, as the platform's compiler is given it."""
    optimizer = kind(model.parameters(), lr=1e-3)
    rule = trace(optimizer, model.named_parameters())
    params = {n: jnp.asarray(p.detach().numpy()) for n, p in model.named_parameters()}
    hyper = rule.hyper(optimizer)
    update = jax.jit(rule.apply)
    lowered = update.trace(params, params, rule.init(params, hyper), hyper).lower(
        lowering_platforms=(platform,)
    )
    return sum("stablehlo.power" in line and "f64" in line for line in lowered.as_text().splitlines())


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.NAdam, torch.optim.Adamax])
def test_an_accelerator_is_given_one_vector_of_powers_for_all_parameters(
    kind: type[torch.optim.Optimizer],
) -> None:
    few, many = Several(), Several()
    few.layers = few.layers[:1]
    assert 0 < powers(few, kind, "tpu") == powers(many, kind, "tpu") <= 4


def test_each_parameter_has_its_own_count_and_its_groups_numbers() -> None:
    """Counts that differ, two groups with other betas, and a schedule between the steps."""
    torch.manual_seed(0)
    model, x = Several(), torch.randn(4, 5)
    weights, biases = (
        [p for n, p in model.named_parameters() if n.endswith(end)] for end in ("weight", "bias")
    )
    groups = [{"params": weights, "betas": (0.8, 0.9)}, {"params": biases, "lr": 1e-2}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    for p in (weights[0], biases[2]):  # two that were trained before
        optimizer.state[p] = {
            "step": torch.tensor(41.0),
            "exp_avg": torch.randn_like(p),
            "exp_avg_sq": torch.rand_like(p),
        }
    both = copy.deepcopy({"model": model, "optimizer": optimizer})
    step = detente.compile(model, loss, optimizer, example_batch=x)
    for lr in (1e-3, 1e-3, 3e-3, 3e-3):
        for one in (optimizer, both["optimizer"]):
            one.param_groups[0]["lr"] = lr
        step(x)
        both["optimizer"].zero_grad()
        loss(both["model"], x).backward()
        both["optimizer"].step()
    step.sync_to_torch()
    for (name, mine), right in zip(model.named_parameters(), both["model"].parameters(), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-7, msg=name)
    held = {n: float(optimizer.state[p]["step"]) for n, p in model.named_parameters()}
    assert held["layers.0.weight"] == held["layers.4.bias"] == 45.0
    assert {v for n, v in held.items() if n not in ("layers.0.weight", "layers.4.bias")} == {4.0}


def test_what_depends_on_a_tensor_stays_with_its_parameter() -> None:
    scalar, tensor = Aval((), "float64"), Aval((3,), "float32")
    graph = Graph(
        (
            Input(0, "x", "param", tensor),
            Input(1, "x", "state.step", scalar),
            Input(2, "x", "hyper.beta", scalar),
        ),
        (
            Node(3, "number.add", (Ref(1), 1.0), (), scalar, Where("a.py", 1)),
            Node(4, "number.pow", (Ref(2), Ref(3)), (), scalar, Where("a.py", 2)),
            Node(5, "aten.sum.default", (Ref(0),), (), Aval((), "float32")),
            Node(6, "number.mul", (Ref(4), Ref(5)), (), scalar),
        ),
        (Output("out", "param", Ref(6)), Output("out", "step", Ref(3))),
    )
    halves = split(graph)
    assert halves is not None
    assert [n.op for n in halves.ahead.nodes] == ["number.add", "number.pow"]
    assert [n.op for n in halves.rest.nodes] == ["aten.sum.default", "number.mul"]
    assert [i.name for i in halves.rest.inputs[3:]] == ["ahead.0", "ahead.1"]
    assert split(Graph(graph.inputs, graph.nodes[2:3], (Output("out", "param", Ref(5)),))) is None


def test_what_depends_on_the_group_alone_stays_too() -> None:
    """SGD's ``-lr``: a stack of layers has no row of it for each."""
    scalar, tensor = Aval((), "float64"), Aval((3,), "float32")
    graph = Graph(
        (
            Input(0, "x", "grad", tensor),
            Input(1, "x", "hyper.lr", scalar),
            Input(2, "x", "state.step", scalar),
        ),
        (
            Node(3, "number.neg", (Ref(1),), (), scalar),
            Node(4, "number.add", (Ref(2), Ref(3)), (), scalar),
            Node(5, "symbolic.aten.mul.Tensor", (Ref(0), Ref(3)), (), tensor),
        ),
        (Output("out", "param", Ref(5)), Output("out", "step", Ref(4))),
    )
    halves = split(graph)
    assert halves is not None
    assert [n.op for n in halves.ahead.nodes] == ["number.neg", "number.add"]  # needed on both sides
    assert [n.op for n in halves.rest.nodes] == ["number.neg", "symbolic.aten.mul.Tensor"]
    assert split(Graph(graph.inputs[:2], (graph.nodes[0], graph.nodes[2]), graph.outputs[:1])) is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.NAdam])
def test_a_stack_of_layers_trains_as_eager_does(kind: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(8))
    )
    eager, x = copy.deepcopy(model), torch.randn(4, 6)
    step = detente.compile(model, loss, kind(model.parameters(), lr=1e-2), example_batch=x, form="rolled")
    optimizer = kind(eager.parameters(), lr=1e-2)
    for _ in range(3):
        step(x)
        optimizer.zero_grad()
        loss(eager, x).backward()
        optimizer.step()
    step.sync_to_torch()
    for mine, right in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-6)


def test_equal_arithmetic_is_one_graph_wherever_it_stands() -> None:
    def made(first: int, line: int) -> Graph:
        scalar = Aval((), "float64")
        return Graph(
            (Input(first, "x", "state.step", scalar),),
            (Node(first + 9, "number.add", (Ref(first), 1.0), (), scalar, Where("a.py", line)),),
            (Output("out", "step", Ref(first + 9)),),
        )

    one, other = split(made(0, 1)), split(made(5, 7))
    assert one is not None and other is not None and one.ahead == other.ahead
    assert hash(one.ahead) == hash(other.ahead)
