"""What a loop over time reads and writes is one tensor, in the program as in torch's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from detente.bridge.capture.capture import capture
from detente.bridge.choose.forms import FORMS, shape
from detente.bridge.graph import Graph, without_dead
from detente.bridge.passes.unbound import SELECT, UNBIND, unbind_selections
from detente.bridge.roll.at_once import CAT, STACK, at_once
from detente.bridge.roll.fold import ROLL, roll
from tests.bridge.test_channels_last import agrees
from tests.sampled import sampled

STEPS, WIDTH = 12, 4


def forwards(n: int) -> list[int]:
    return list(range(n))


class Recurrent(nn.Module):
    """A recurrence as people write it. ``order``: the moments it reads; ``put``: what becomes of its states."""

    def __init__(self, put: Any, order: Any = forwards, moments: Any = None) -> None:
        super().__init__()
        self.mix, self.own = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.put, self.order, self.moments = put, order, moments

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, state, states = self.mix(x), x.new_zeros(x.shape[0], WIDTH), []
        for moment in self.moments(x) if self.moments else [x[:, t] for t in self.order(STEPS)]:
            state = torch.tanh(0.5 * self.own(state) + torch.sin(moment))
            states.append(state)
        return self.put(states)


def joined(states: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([s.unsqueeze(1) for s in states], 1)


def moments_last(x: torch.Tensor) -> list[torch.Tensor]:
    turned = x.transpose(1, 2)
    return [turned[..., t] for t in range(STEPS)]


def of_all(graph: Graph) -> Counter[str]:
    """Operators outside of loops, and how many there are."""
    return Counter(n.op for n in graph.nodes)


# A loop begins where the least goes from one step to the next: what stands before that of the first step, and behind
# it of the last, is outside of it and reads a piece.
ENDS = 2
# name -> the model, and what is left of the pieces outside of the loop; None: it may be as it was
WHOLE: dict[str, tuple[Any, dict[str, int] | None]] = {
    "stacked first": (Recurrent(torch.stack), {}),
    "stacked second": (Recurrent(lambda s: torch.stack(s, 1)), {}),
    "stacked last": (Recurrent(lambda s: torch.stack(s, -1)), {}),
    "joined": (Recurrent(joined), {}),
    "joined along a dimension that they have": (Recurrent(lambda s: torch.cat(s, -1)), {}),
    "from the end": (Recurrent(lambda s: torch.stack(s, 1), lambda n: range(n)[::-1]), {}),
    "from the end, and turned back": (
        Recurrent(lambda s: torch.stack(s[::-1], 1), lambda n: range(n)[::-1]),
        {},
    ),
    "all but the first and the last": (Recurrent(joined, lambda n: range(1, n - 1)), {}),
    "of a tensor whose moments come last": (
        Recurrent(joined, moments=lambda x: [x.transpose(1, 2).contiguous()[..., t] for t in range(STEPS)]),
        None,
    ),
    "of one that is made once": (
        Recurrent(joined, moments=moments_last),
        {},
    ),
    "joined along another dimension than their own": (
        Recurrent(lambda s: torch.cat([v.unsqueeze(1) for v in s], 2)),
        None,
    ),
    "with others between": (
        Recurrent(lambda s: torch.stack([s[0] * 2, *s[1:6], s[-1] * 3, *s[6:]], 1)),
        {},
    ),
    "every second": (Recurrent(lambda s: torch.stack(s[::2], 1)), None),
    "the last alone": (Recurrent(lambda s: s[-1]), {}),
    "there and back": (Recurrent(lambda s: torch.stack([*s, *s[::-1]], 1)), {}),
    "in no order": (Recurrent(joined, lambda n: [(5 * k) % n for k in range(n)]), {UNBIND: 1}),
    "by whoever takes it apart": (Recurrent(joined, moments=lambda x: x.unbind(-2)), {}),
    "and along the first dimension": (Recurrent(joined, moments=lambda x: x.transpose(0, 1).unbind()), {}),
}


@pytest.mark.parametrize("name", sampled(WHOLE, 3))
def test_pieces_in_the_order_of_the_loop_are_one_tensor_and_train_as_eager(name: str) -> None:
    model, left = WHOLE[name]
    torch.manual_seed(0)
    x = torch.randn(3, STEPS, WIDTH)
    made = capture(model, lambda m, b: m(b).square().mean(), x)
    graph = roll(unbind_selections(without_dead(made.graph)))
    assert of_all(graph)[ROLL] == 1
    seen = of_all(at_once(graph))
    if left is not None:
        assert {op: seen[op] for op in (UNBIND, STACK) if seen[op]} == left
        assert seen[SELECT] <= ENDS
    step = agrees(model, x, form="rolled")
    assert step.choice.form == "rolled"


class Layered(nn.Module):
    """Layers of recurrences: loops inside a loop."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Recurrent(lambda s: torch.stack(s, 1)) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("form", sampled(["rolled", "rolled+dots", "rolled+full", "inside"], 4))
def test_also_inside_of_layers(form: str) -> None:
    torch.manual_seed(0)
    model, x = Layered(3), torch.randn(2, STEPS, WIDTH)
    made = capture(model, lambda m, b: m(b).square().mean(), x)
    shaped = shape(unbind_selections(without_dead(made.graph)), FORMS[form])
    (layers,) = (n for n in shaped.graph.nodes if n.op == ROLL)
    inside = of_all(layers.args[0])
    assert inside[ROLL] == 1 and not inside[UNBIND] and not inside[STACK] and inside[SELECT] <= ENDS
    assert agrees(model, x, form=form).choice.form == form


def without_gradients(states: list[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        scale = torch.stack(states, 1).abs().mean() + 1
    return torch.stack(states, 1) / scale


class Again(nn.Module):
    """A recurrence whose inside is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Recurrent(joined)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize("make", [lambda: Recurrent(without_gradients), Again], ids=["no_grad", "checkpoint"])
@pytest.mark.parametrize("form", sampled(["rolled", "rolled+dots", "unrolled"], 3))
def test_regions_keep_what_they_mean(make: Any, form: str) -> None:
    torch.manual_seed(0)
    assert agrees(make(), torch.randn(3, STEPS, WIDTH), form=form).choice.form == form


def test_two_loops_of_the_same_shapes_are_not_taken_for_one() -> None:
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Recurrent(lambda s: s), Recurrent(lambda s: s[::-1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, other = self.one(x), self.other(x)
            mixed = [v for pair in zip(one, other, strict=True) for v in pair]
            return torch.stack([*one, *other], 1).sum(1) + torch.cat(mixed, 1).sum(1, keepdim=True)

    agrees(Two(), torch.randn(3, STEPS, WIDTH), form="rolled")


def test_what_is_joined_may_differ_in_dtype() -> None:
    torch.manual_seed(0)
    model = Recurrent(lambda s: torch.stack([s[0] > 0, *s], 1))
    agrees(model, torch.randn(3, STEPS, WIDTH), form="rolled")


def test_without_a_loop_it_is_the_same_graph() -> None:
    made = capture(nn.Linear(4, 4), lambda m, b: torch.stack([m(b)] * 6).sum(), torch.ones(2, 4))
    assert at_once(made.graph) is made.graph
    assert CAT not in of_all(made.graph)
