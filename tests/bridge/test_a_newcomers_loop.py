"""Loops as tutorials write them, with the fewest lines changed: what runs, and what a mistake is answered with."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge import Refused, check
from detente.bridge.cache.describe import Writer
from detente.bridge.step.step import Step

X, Y = torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(0, 1, 4)[:, None]


def made(**options: Any) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    options = {"loss": of_pair, "example_batch": (X, Y)} | options
    loss = options.pop("loss")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, detente.compile(model, loss, optimizer, cache=False, quiet=True, **options)


def of_pair(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return (model(x) - y).square().mean()


def test_a_loader_gives_a_list_and_the_loop_hands_over_a_tuple() -> None:
    """``example_batch=next(iter(loader))``, and ``for x, y in loader: step((x, y))``."""
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=4)
    ours, step = made(example_batch=next(iter(loader)))
    eager, _ = made()
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in loader:
            value = of_pair(eager, (x, y))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            assert torch.allclose(step((x, y)), value.detach())
    assert len(step.programs) == 2
    assert all(torch.allclose(a, b) for a, b in zip(ours.parameters(), eager.parameters(), strict=True))


def test_other_containers_with_a_float_that_moves_in_them_are_other_programs() -> None:
    _, step = made(loss=lambda m, b: b[2] * of_pair(m, b[:2]), example_batch=[X, Y, 1.0])
    eager, _ = made()
    begin = step.state_dict()
    for factor in (1.0, 0.5, 0.25):
        step.restart(begin)
        wanted = factor * float(of_pair(eager, (X, Y)).detach())
        assert float(step((X, Y, factor))) == pytest.approx(wanted)


def test_a_batch_without_one_of_its_tensors_is_refused_by_name() -> None:
    _, step = made()
    with pytest.raises(Refused, match=r"missing batch\[1\]"):
        step((X,))


# The loop's own variables, as they stand in a script, and the script.
HERE: Any = sys.modules[__name__]
loss: Any = None
hidden: Any = None
rate: Any = None


class Net(nn.Module):
    """Has an attribute and returns an object, whose names a loop gives to its variables as well."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.layer = 2.0, nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return SimpleNamespace(loss=(self.layer(x) * self.hidden).square().mean())


def of_output(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).loss


def of_module(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).loss * sys.modules[__name__].rate


def test_a_variable_of_the_script_that_is_called_as_an_attribute_is_no_part_of_the_program() -> None:
    _, step = made_of(Net(), of_output)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            HERE.loss = step(X)
            HERE.hidden = HERE.loss + 1
    assert len(step.programs) == 1


def test_nor_of_the_name_that_the_program_is_stored_under() -> None:
    """A cell of a notebook that is run again would compile again."""
    texts = []
    for value in (1.0, 2.0):
        HERE.loss = value
        texts.append(Writer().value(of_output))
    assert texts[0] == texts[1]


def test_a_value_that_is_asked_of_the_script_as_a_module_counts() -> None:
    _, step = made_of(Net(), of_module, lr=0.0)
    found = []
    for value in (1.0, 2.0, 2.0):
        HERE.rate = value
        found.append(float(step(X)))
    assert found[1] == pytest.approx(2 * found[0]) and found[2] == found[1]


def made_of(model: nn.Module, loss: Any, lr: float = 0.1) -> tuple[nn.Module, Step]:
    HERE.rate = 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, detente.compile(model, loss, optimizer, example_batch=X, cache=False, quiet=True)


held: Any = torch.zeros(2, 50)


def of_held(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).loss + held[0].sum()


def test_a_warning_of_what_moves_says_what_it_is_and_no_numbers() -> None:
    _, step = made_of(Net(), of_held)
    with pytest.warns(UserWarning, match="global held changes between steps") as told:
        for size in (3, 4, 5):
            HERE.held = (torch.zeros(2, 40 + size), 1)
            step(X)
    said = str(told[0].message)
    assert "a tensor of float32[2, 44]" in said and len(said) < 300


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda m, x, y: (m(x) - y).square().mean(), "takes (m, x, y)"),
        (lambda batch: batch, "takes (batch)"),
        (nn.MSELoss(), "takes a prediction and a target"),
    ],
)
def test_a_loss_of_other_arguments_is_told_how_it_is_called(loss: Any, says: str) -> None:
    with pytest.raises(Refused) as refused:
        made(loss=loss)
    assert says in str(refused.value) and "loss(model, batch)" in str(refused.value)


def test_an_empty_batch_is_told_what_goes_into_one() -> None:
    with pytest.raises(Refused, match=r"the batch holds no tensor\n +hint: put what the loss reads into it"):
        made(example_batch=())


def test_a_backward_that_was_left_in_the_loop_is_told_that_it_is_done() -> None:
    _, step = made()
    with pytest.raises(RuntimeError, match=r"has run the backward pass .* take backward\(\)"):
        step((X, Y)).backward()


DTYPES = ("float16", "bfloat16", "float32", "float64", "int64")
OF_ONE: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.Tensor]]] = {
    "linear": (lambda: nn.Linear(3, 3), lambda m, x: m(x)),
    "matmul": (lambda: nn.Linear(3, 3), lambda m, x: x @ m.weight),
    "batches": (lambda: nn.Linear(3, 3), lambda m, x: x[None] @ m.weight),
    "mv": (lambda: nn.Linear(3, 3), lambda m, x: m.weight.mv(x[0])),
    "addmm": (lambda: nn.Linear(3, 3), lambda m, x: torch.addmm(m.bias, x, m.weight)),
    "layer norm": (lambda: nn.LayerNorm(3), lambda m, x: m(x)),
    "group norm": (lambda: nn.GroupNorm(1, 3), lambda m, x: m(x)),
    "batch norm": (lambda: nn.BatchNorm1d(3), lambda m, x: m(x)),
    "batch norm, eval": (lambda: nn.BatchNorm1d(3).eval(), lambda m, x: m(x)),
    "convolution": (lambda: nn.Conv1d(3, 2, 2), lambda m, x: m(x.T)),
    "transposed": (lambda: nn.ConvTranspose1d(3, 2, 2), lambda m, x: m(x.T)),
    "index_add": (lambda: nn.Linear(3, 3), lambda m, x: m.weight.index_add(0, torch.arange(3), x[:3])),
    "index_copy": (lambda: nn.Linear(3, 3), lambda m, x: m.weight.index_copy(0, torch.arange(3), x[:3])),
    "cdist": (lambda: nn.Linear(3, 3), lambda m, x: torch.cdist(m.weight, x)),
}


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_at_which_torch_raises_are_refused_and_no_others(name: str, dtype: str) -> None:
    """numpy's numbers are float64: the first step gave a loss, and the certificate raised in the second."""
    build, call = OF_ONE[name]
    torch.manual_seed(0)
    model, x = build(), torch.ones(4, 3).to(getattr(torch, dtype))

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return call(model, x).float().sum()

    try:
        loss(model, x)
        wanted = True
    except (RuntimeError, NotImplementedError):
        wanted = False
    reasons = check(model, loss, x)
    assert (not reasons) == wanted, reasons
    assert all(reason.where is not None for reason in reasons)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "bool"])
@pytest.mark.parametrize("kind", ["cross_entropy", "nll_loss"])
def test_labels_at_which_torch_raises_are_refused(kind: str, dtype: str) -> None:
    labels = torch.zeros(4).to(getattr(torch, dtype))
    model = nn.Linear(3, 2)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return getattr(nn.functional, kind)(model(x), y)

    try:
        loss(model, (X, labels))
        wanted = True
    except RuntimeError:
        wanted = False
    reasons = check(model, loss, (X, labels))
    assert (not reasons) == wanted, reasons
