"""``step.restart(tensors)``: weights by name, and a name that is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente import bridge

IDS, NEXT = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 4])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture(scope="module")
def step() -> bridge.Step:
    model = Tied()
    sgd = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    return bridge.compile(model, loss, sgd, example_batch=(IDS, NEXT), certificate="none", cache=False)


WEIGHT = torch.linspace(-1, 1, 20).view(5, 4)


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
@pytest.mark.parametrize(
    "kind", [torch.clone, torch.Tensor.numpy, torch.Tensor.double], ids=["plain", "numpy", "wide"]
)
def test_a_tied_weight_has_both_names(step: bridge.Step, name: str, kind: Any) -> None:
    step((IDS, NEXT))
    step.restart({name: kind(WEIGHT), "head.bias": torch.zeros(5)})
    model = Tied()
    with torch.no_grad():
        model.embed.weight.copy_(WEIGHT)
        model.head.bias.zero_()
    assert float(step((IDS, NEXT))) == pytest.approx(float(loss(model, (IDS, NEXT)).detach()), rel=1e-5)


def test_what_a_step_says_of_itself_is_taken(step: bridge.Step) -> None:
    kept, values = step.state_dict(), {name: np.asarray(value) for name, value in step.values().items()}
    before = float(step((IDS, NEXT)))
    for given in (kept, values):
        step((IDS, NEXT))
        step.restart(given)
        assert float(step((IDS, NEXT))) == pytest.approx(before, rel=1e-6)
    here = float(step.evaluate((IDS, NEXT)))
    step.restart(step.values())
    assert float(step((IDS, NEXT))) == pytest.approx(here, rel=1e-6)


WRONG = {
    "a typo": ({"embed.wieght": WEIGHT}, ["'embed.wieght' is no name", "embed.weight?"]),
    "another model's": ({"module.x": WEIGHT}, ["'module.x' is no name"]),
    "another shape": ({"head.bias": torch.zeros(4)}, [r"head.bias has shape [4], and the module's [5]"]),
    "both": (
        {"nothing": WEIGHT, "head.weight": WEIGHT.t(), "head.bias": torch.ones(5)},
        ["2 reasons", "'nothing' is no name", "head.weight has shape [4, 5], and the module's [5, 4]"],
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_what_is_none_of_the_modules_is_refused_and_nothing_is_changed(step: bridge.Step, case: Any) -> None:
    tensors, says = case
    step((IDS, NEXT))
    before, moments, count = step.state_dict(), step.moments(), step.count
    moments = {n: {k: np.array(leaf) for k, leaf in leaves.items()} for n, leaves in moments.items()}
    with pytest.raises(bridge.Refused) as refused:
        step.restart(tensors)
    assert all(part in str(refused.value) for part in says), str(refused.value)
    assert {reason.code for reason in refused.value.reasons} == {"weights"} and step.count == count
    after = step.state_dict()
    assert all(torch.equal(after[n], before[n]) for n in before if n != "_extra_state")
    for name, leaves in step.moments().items():
        assert all(np.array_equal(leaf, moments[name][key]) for key, leaf in leaves.items())
    step((IDS, NEXT))


def test_a_module_is_no_mapping(step: bridge.Step) -> None:
    with pytest.raises(TypeError, match=r"tensors by name.*this is a Tied"):
        step.restart(Tied())  # type: ignore[arg-type]


def test_without_weights_it_is_refused_and_nothing_is_changed(step: bridge.Step) -> None:
    step((IDS, NEXT))
    before, count = step.state_dict(), step.count
    with pytest.raises(bridge.Refused, match=r"keeps none of before(?s:.)*step\.restart\(begin\)"):
        step.restart()
    assert step.count == count and all(
        torch.equal(after, before[name])
        for name, after in step.state_dict().items()
        if name != "_extra_state"
    )


def test_what_is_not_named_stays_what_it_is(step: bridge.Step) -> None:
    """What was trained, and what somebody has written since; not what the live module held when it was last read."""
    step((IDS, NEXT))
    trained = step.state_dict()["head.bias"].clone()
    step.restart({"embed.weight": WEIGHT})
    assert torch.equal(step.state_dict()["head.bias"], trained)
    with torch.no_grad():
        step.model.head.bias.fill_(3.0)
    step.restart({"embed.weight": WEIGHT})
    assert step.count == 0 and float(step.state_dict()["head.bias"].mean()) == 3.0
    assert not any(leaf.any() for leaves in step.moments().values() for leaf in leaves.values())


def test_what_is_named_takes_the_place_of_what_was_written(step: bridge.Step) -> None:
    step((IDS, NEXT))
    with torch.no_grad():
        step.model.head.bias.fill_(7.0)
    step.restart({"head.bias": torch.ones(5)})
    assert float(step.state_dict()["head.bias"].mean()) == 1.0 == float(step.model.head.bias.detach().mean())
