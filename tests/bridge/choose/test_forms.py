"""Every form of a training step gives the same loss, parameters, buffers and optimizer state, in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.choose.choose import alike_of
from detente.bridge.choose.forms import FORMS, Shaped, available, shape
from detente.bridge.graph import Graph
from detente.bridge.lower.precision import x64
from detente.bridge.optim.rule import trace
from detente.bridge.passes.connected import connected
from detente.bridge.program.program import Compiled, Program, compile_step
from detente.bridge.refusal import Refused
from detente.bridge.state.place import to_jax


class Layer(nn.Module):
    """A residual layer with normalisation by running statistics, dropout and a product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, layers: int, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.ModuleList(Layer(width) for _ in range(layers))
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.inner:
            x = layer(x)
        return self.last(x)


class Case:
    """A captured step of ``Net`` and what it needs to be compiled in any form."""

    def __init__(self, layers: int = 9, make: Any = None) -> None:
        torch.manual_seed(0)
        model = Net(layers).double()
        inputs = (torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 3, (6,)))
        decay = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim == 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = (make or (lambda g: torch.optim.AdamW(g, lr=1e-2)))(groups)
        self.rule = trace(self.optimizer, model.named_parameters())
        self.captured = capture(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), inputs)
        self.graph: Graph = self.captured.graph
        self.values = {n: to_jax(t) for n, t in self.captured.weights.tensors.items()}
        self.state = self.rule.read_state(self.optimizer, dict(model.named_parameters()))
        self.batch = [to_jax(t) for t in inputs]
        self.hyper = self.rule.hyper(self.optimizer)

    def joined(self, shaped: Shaped) -> tuple[Any, Any]:
        with x64():
            values = shaped.stacks.join(self.values, jnp.stack)
            state = shaped.stacks.join(self.state, lambda rows: jax.tree.map(lambda *r: jnp.stack(r), *rows))
        return values, state

    def build(self, shaped: Shaped) -> Compiled:
        stacks = {s.name: s.members for s in shaped.stacks.rows}
        program = Program(shaped.graph, "highest", stacks, connected(self.graph), shaped.form.inside)
        values, state = self.joined(shaped)
        return compile_step(program, self.rule, values, state, self.batch, self.hyper)

    def steps(self, form: str, count: int = 3) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Losses, values and optimizer state by torch's names after some steps."""
        shaped = shape(self.graph, FORMS[form], alike_of(self.rule))
        compiled = self.build(shaped)
        values, state = self.joined(shaped)
        with x64():
            values, state = jax.tree.map(jnp.copy, (values, state))
        losses = []
        for k in range(count):
            seed, number = np.uint32(3), np.uint32(k)
            changed, state, loss, _, _ = compiled(values, state, self.batch, self.hyper, seed, number)
            values = {**values, **changed}
            losses.append(float(loss))
        with x64():
            split = shaped.stacks.split(values)
            states = shaped.stacks.split(state, lambda s, k: jax.tree.map(lambda x: x[k], s))
        return losses, split, states


def close(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-11)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


@pytest.fixture(scope="module")
def unrolled(case: Case) -> Any:
    return case.steps("unrolled")


@pytest.mark.parametrize("form", [f for f in FORMS if f != "unrolled"])
def test_all_forms_train_alike(case: Case, unrolled: Any, form: str) -> None:
    close(case.steps(form), unrolled)


def test_parameters_and_running_statistics_are_stacked(case: Case) -> None:
    shaped = shape(case.graph, FORMS["rolled"], alike_of(case.rule))
    stacked = {s.name for s in shaped.stacks.rows}
    assert {"inner.0-8.norm.running_mean", "inner.0-8.up.weight"} <= stacked
    assert "inner.0-8.norm.running_mean" in {o.name for o in shaped.graph.outputs}


def test_clipping_by_the_global_norm_refuses_the_update_inside_the_loop(case: Case) -> None:
    assert "norm" in available(case.graph, whole="clipping by the global norm")["inside"]
    assert available(case.graph)["inside"] == ""


def test_a_program_without_layers_has_one_form() -> None:
    refused = available(Case(layers=1).graph)
    assert [f for f, why in refused.items() if not why] == ["unrolled"]


def test_refused_is_an_error_with_the_reason(case: Case) -> None:
    from detente.bridge.choose.choose import choose

    with pytest.raises(Refused, match="norm"):
        choose(
            case.graph,
            case.build,
            alike=alike_of(case.rule),
            form="inside",
            whole="clipping by the global norm",
        )
