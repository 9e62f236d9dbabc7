"""Many selections of one tensor become one ``unbind``, and train as they did."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.graph import without_dead
from detente.bridge.passes.unbound import SELECT, UNBIND, unbind_selections
from tests.bridge.test_channels_last import agrees


class Recurrent(nn.Module):
    """A loop over time as people write it; ``read`` says how a moment is taken."""

    def __init__(self, read: Any, steps: int = 6) -> None:
        super().__init__()
        self.mix, self.read, self.steps = nn.Linear(4, 4), read, steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, state, states = self.mix(x), torch.zeros(x.shape[0], 4), []
        for t in range(self.steps):
            state = torch.tanh(0.5 * state + self.read(x, t))
            states.append(state)
        return torch.stack(states, 1)


READS = {
    "in order": (lambda x, t: x[:, t], 6, {UNBIND: 1}),
    "from the end": (lambda x, t: x[:, -1 - t], 6, {UNBIND: 1}),
    "by a negative dimension": (lambda x, t: x.select(-2, t), 6, {UNBIND: 1}),
    "twice each": (lambda x, t: x[:, t] * x[:, 5 - t], 6, {UNBIND: 1}),
    "one of them over and over": (lambda x, t: x[:, 0], 6, {SELECT: 1}),
    "few of many": (lambda x, t: x[:, t % 2], 6, {SELECT: 2}),
    "three": (lambda x, t: x[:, t], 3, {SELECT: 3}),
    "of what was selected": (
        lambda x, t: torch.stack([x[:, t][:, k] for k in range(4)], 1),
        6,
        {UNBIND: 1, SELECT: 24},
    ),
}


@pytest.mark.parametrize("name", READS)
def test_what_becomes_one_and_that_it_trains_as_eager(name: str) -> None:
    read, steps, wanted = READS[name]
    torch.manual_seed(0)
    model, x = Recurrent(read, steps), torch.randn(3, 6, 4)
    made = capture(model, lambda m, b: m(b).square().mean(), x)
    graph = unbind_selections(without_dead(made.graph))
    seen = Counter(node.op for node in without_dead(graph).nodes)
    if name not in ("one of them over and over", "few of many"):  # what is read twice may stand there twice
        assert {op: seen[op] for op in (SELECT, UNBIND) if seen[op]} == wanted
    else:
        assert not seen[UNBIND]
    agrees(model, x)


def test_nothing_to_do_is_the_same_graph() -> None:
    model = nn.Linear(4, 4)
    made = capture(model, lambda m, b: m(b).sum(), torch.ones(2, 4))
    assert unbind_selections(made.graph) is made.graph


def test_in_a_loop_over_time() -> None:
    """Thirty moments are rolled into one loop, whose input is what was taken apart."""
    torch.manual_seed(0)
    step = agrees(Recurrent(lambda x, t: x[:, t], 30), torch.randn(3, 30, 4), form="rolled")
    assert step.choice.form == "rolled"


def test_a_place_that_no_step_reads_takes_no_gradient() -> None:
    torch.manual_seed(0)
    agrees(Recurrent(lambda x, t: x[:, t + 1], 5), torch.randn(3, 6, 4))
