"""Groups of the optimizer that are removed, merged or made anew between two steps: what is in none stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge.refusal import Refused
from tests.sampled import sampled

X = torch.linspace(-1.0, 1.0, 30).reshape(5, 6)
Made = tuple[nn.Module, torch.optim.Optimizer]


def adam(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups)


def momentum(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, momentum=0.9)


class GlobalNorm(torch.optim.Optimizer):
    """Its parameters see each other, so that it is traced as a whole. ``doubled`` is a flag, ``most`` a tensor that a
    step writes into the group."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"doubled": False})
        for group in self.param_groups:
            group["most"] = torch.zeros(3)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        norm = torch.sqrt(sum(p.grad.square().sum() for g in self.param_groups for p in g["params"]))
        for group in self.param_groups:
            group["most"].add_(norm)
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(0.9).add_(p.grad / (norm + group["most"].mean()))
                p.add_(mean, alpha=-group["lr"] * (2 if group["doubled"] else 1))


def made_anew_with_all(model: Any, optimizer: torch.optim.Optimizer) -> None:
    made_anew(model, optimizer)
    optimizer.param_groups[0]["most"] = torch.ones(3)


def a_flag(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[1]["doubled"] = True
    optimizer.param_groups[0]["note"] = "and an entry of somebody's"


def an_entry_bound_anew(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[1]["most"] = torch.full((3,), 5.0)


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def begun(make: Callable[[Any], torch.optim.Optimizer]) -> Made:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    rates = {0: 0.01, 2: 0.1}
    return model, make([{"params": list(model[i].parameters()), "lr": lr} for i, lr in rates.items()])


def the_last(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.pop()


def the_first(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.pop(0)


def with_its_state(model: Any, optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups.pop()["params"]:
        del optimizer.state[parameter]


def merged(model: Any, optimizer: torch.optim.Optimizer) -> None:
    gone = optimizer.param_groups.pop(0)
    optimizer.param_groups[0]["params"][:0] = gone["params"]


def split(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [optimizer.param_groups[0]["params"].pop()], "lr": 0.3})


def exchanged(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.reverse()


def one_moved(model: Any, optimizer: torch.optim.Optimizer) -> None:
    one, other = optimizer.param_groups
    other["params"].append(one["params"].pop())


def made_anew(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": list(model.parameters()), "lr": 0.05})


def all_made_anew(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.clear()
    optimizer.state.clear()
    optimizer.add_param_group({"params": list(model.parameters()), "lr": 0.05})


def none_left(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.clear()


EDITS = (
    the_last,
    the_first,
    with_its_state,
    merged,
    split,
    exchanged,
    one_moved,
    made_anew,
    all_made_anew,
    none_left,
)


def trained(made: Made, step: Callable[[Any], Any] | None, change: Callable[[int], None]) -> list[float]:
    """Losses of six steps; ``step`` None: eager's."""
    model, optimizer = made
    found = []
    for i in range(6):
        if step is None:
            optimizer.zero_grad()
            value = loss(model, X)
            value.backward()
            optimizer.step()
            found.append(value.item())
        else:
            found.append(float(step(X)))
        change(i)
    return found


def compiled(made: Made, **options: Any) -> Any:
    return detente.compile(*(made[0], loss, made[1]), example_batch=X, cache=False, quiet=True, **options)


def held(made: Made) -> tuple[list[str], dict[str, Any]]:
    """What eager and the bridge must agree on: whose state there is, in its order, and all values."""
    names = {id(p): name for name, p in made[0].named_parameters()}
    states = {names[id(p)]: dict(entry) for p, entry in made[1].state.items()}
    values = {f"{name}.{key}": value for name, entry in states.items() for key, value in entry.items()}
    for i, group in enumerate(made[1].param_groups):
        values |= {f"{i}.{key}": v for key, v in group.items() if isinstance(v, float | torch.Tensor)}
    return list(states), values | dict(made[0].state_dict())


def grouped(made: Made) -> list[tuple[list[str], Any]]:
    names = {id(p): name for name, p in made[0].named_parameters()}
    return [([names[id(p)] for p in g["params"]], g.get("note")) for g in made[1].param_groups]


CASES = [
    *((adam, edit, 2) for edit in EDITS),
    *((adam, edit, 0) for edit in (the_last, merged, split, exchanged)),  # its step's certificate is open
    *(
        (GlobalNorm, edit, 2)
        for edit in (the_last, the_first, with_its_state, merged, exchanged, one_moved, a_flag)
    ),
    *((GlobalNorm, edit, 0) for edit in (the_first, merged, a_flag)),
    *((GlobalNorm, edit, 2) for edit in (made_anew_with_all, an_entry_bound_anew)),
    *((momentum, edit, 2) for edit in (the_first, merged, all_made_anew)),  # whose first step is another
]


@pytest.mark.parametrize(("make", "edit", "when"), sampled(CASES, 2, several=True))
def test_it_trains_as_eager_does(
    make: Callable[[Any], torch.optim.Optimizer], edit: Callable[..., None], when: int
) -> None:
    mine, plain = begun(make), begun(make)
    step = compiled(mine)
    found = trained(mine, step, lambda i: edit(*mine) if i == when else None)
    expected = trained(plain, None, lambda i: edit(*plain) if i == when else None)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    (order, values), (its_order, its_values) = held(mine), held(plain)
    assert order == its_order and grouped(mine) == grouped(plain)
    torch.testing.assert_close(values, its_values, rtol=1e-4, atol=1e-6)
    assert step.certificate is None or step.certificate.ok


def test_a_group_that_comes_back_goes_on_from_its_state() -> None:
    mine, plain = begun(adam), begun(adam)

    def change(made: Made, gone: list[Any]) -> Callable[[int], None]:
        def at(i: int) -> None:
            if i == 1:
                gone.append(made[1].param_groups.pop(0))
            if i == 3:
                made[1].param_groups += gone

        return at

    found = trained(mine, compiled(mine), change(mine, []))
    torch.testing.assert_close(found, trained(plain, None, change(plain, [])), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(held(mine)[1], held(plain)[1], rtol=1e-4, atol=1e-6)


def test_an_average_that_nothing_would_move_on_is_refused() -> None:
    """``AveragedModel`` goes on moving it towards the weight."""
    mine = begun(adam)
    step = compiled(mine, ema=0.9)
    float(step(X))
    gone = mine[1].param_groups.pop()
    for _ in range(2):
        with pytest.raises(Refused, match="average"):
            step(X)
    mine[1].param_groups.append(gone)  # nothing is lost
    float(step(X))
