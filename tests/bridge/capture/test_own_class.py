"""`type(x) is torch.Tensor` is false in a capture and true in eager: refused with its line, where it stands in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge

X = torch.arange(12.0).reshape(3, 4) / 10
ASKS: dict[str, Callable[[nn.Module, torch.Tensor], bool]] = {
    "type is": lambda m, x: type(x) is torch.Tensor,
    "type equals": lambda m, x: type(x) == torch.Tensor,  # noqa: E721
    "the attribute": lambda m, x: x.__class__ is torch.Tensor,
    "of a parameter": lambda m, x: type(m.weight) is nn.Parameter,
    "of a result, among several": lambda m, x: type(m(x)) in (torch.Tensor, nn.Parameter),
    "by its name": lambda m, x: type(x).__name__ == "Tensor",
    "over several lines": lambda m, x: (
        type(x)
        in (
            nn.Parameter,
            torch.Tensor,
        )
    ),
    "behind another question": lambda m, x: isinstance(m, nn.Linear) and type(x) is torch.Tensor,
    "by its name, among several": lambda m, x: type(x).__name__ in ("Tensor", "Parameter"),
}
OTHERS: dict[str, Callable[[nn.Module, torch.Tensor], bool]] = {
    "isinstance": lambda m, x: isinstance(x, torch.Tensor) and isinstance(m.weight, nn.Parameter),
    "the class of a number": lambda m, x: type(len(x)) is int,
    "the class of a module": lambda m, x: type(m) is nn.Linear,
    "both, of two things": lambda m, x: isinstance(x, torch.Tensor) and type(m).__name__ == "Linear",
    "a message": lambda m, x: f"a {type(m).__name__}, not a torch.Tensor" == "a Linear, not a torch.Tensor",
}


def stepping(ask: Callable[[nn.Module, torch.Tensor], bool]) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return bridge.compile(
        model,
        lambda m, x: m(x).square().mean() * (2 if ask(m, x) else 1),
        optimizer,
        example_batch=X,
        seed=0,
        certificate="none",
        quiet=True,
    )


@pytest.mark.parametrize("name", ASKS)
def test_the_class_of_a_tensor_itself_is_refused_with_the_line(name: str) -> None:
    begins = ASKS[name].__code__.co_firstlineno
    with pytest.raises(bridge.Refused, match=r"isinstance\(x, torch.Tensor\)") as raised:
        stepping(ASKS[name])
    (reason,) = raised.value.reasons
    assert reason.where is not None and reason.where.file == __file__
    assert begins <= reason.where.line <= begins + 2


@pytest.mark.parametrize("name", OTHERS)
def test_other_questions_have_eagers_answer(name: str) -> None:
    torch.manual_seed(0)
    assert OTHERS[name](nn.Linear(4, 2), X), "the case"
    step = stepping(OTHERS[name])
    torch.manual_seed(0)
    assert float(step(X)) == pytest.approx(2 * float(nn.Linear(4, 2)(X).square().mean()), rel=1e-5)
