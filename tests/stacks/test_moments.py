"""What an optimizer keeps, by parameter: moments of numbers are no counts of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detente.stacks.moments import by_name

torch = pytest.importorskip("torch", reason="torch is not installed")


def kept(
    *shapes: tuple[int, ...], optimizer: Any = torch.optim.AdamW, steps: int = 3
) -> dict[str, np.ndarray]:
    parameters = {f"p{i}": torch.nn.Parameter(torch.ones(shape)) for i, shape in enumerate(shapes)}
    made = optimizer(parameters.values(), lr=0.1)
    for _ in range(steps):
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, 0.5)
        made.step()
    state = {n: {k: np.array(v) for k, v in made.state[p].items()} for n, p in parameters.items()}
    return by_name(state, {n: tuple(p.shape) for n, p in parameters.items()})


@pytest.mark.parametrize(
    "shapes", [((), (3,)), ((), ()), ((2, 3), (3,))], ids=["one number", "numbers", "arrays"]
)
def test_a_temperature_has_moments_and_steps_are_one_number(shapes: Any) -> None:
    found = kept(*shapes)
    wanted = {f"{key}:p{i}" for key in ("exp_avg", "exp_avg_sq") for i in range(len(shapes))}
    assert found.keys() == wanted | {"step"} and float(found["step"]) == 3
    for i, shape in enumerate(shapes):
        assert found[f"exp_avg:p{i}"].shape == shape


@pytest.mark.parametrize("optimizer", [torch.optim.NAdam, torch.optim.ASGD], ids=lambda o: o.__name__)
def test_other_numbers_that_an_optimizer_keeps_are_no_moments(optimizer: Any) -> None:
    found = kept((), (), optimizer=optimizer)
    numbers = {name for name in found if ":" not in name}
    assert numbers >= {"step"} and all(found[name].shape == () for name in numbers)
    assert not {name.partition(":")[0] for name in found if ":" in name} & {"step", "mu", "eta", "mu_product"}


def test_what_was_never_stepped_has_no_count() -> None:
    state = {"a": {"step": np.array(3.0)}, "b": {"step": np.array(0.0)}}
    assert by_name(state, {"a": (2,), "b": (2,)}) == {"step": np.array(3.0)}
    assert float(by_name({"b": {"step": np.array(0.0)}}, {"b": (2,)})["step"]) == 0
