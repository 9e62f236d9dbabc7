"""The rule, the ladder under a memory limit, tuning and what is remembered of it; every form is really compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_forms
import torch

from detente import bridge
from detente.bridge.choose.choice import Choice, Considered
from detente.bridge.choose.choose import DEFAULT, ROLL_FROM, Chosen, alike_of, choose
from detente.bridge.choose.forms import Shaped
from detente.bridge.choose.memory import limit_bytes, memory
from detente.bridge.choose.remember import fingerprint, recall, remember


class Counted:
    """``build`` of a case that remembers which forms it compiled."""

    def __init__(self, case: test_forms.Case) -> None:
        self.case, self.forms = case, []

    def __call__(self, shaped: Shaped) -> Any:
        self.forms.append(shaped.form.name)
        return self.case.build(shaped)


def plain(groups: Any) -> Any:
    return torch.optim.SGD(groups, lr=0.1)


@pytest.fixture(scope="module")
def case() -> test_forms.Case:
    return test_forms.Case(layers=ROLL_FROM, make=plain)


def chosen(case: test_forms.Case, build: Any, **options: Any) -> Chosen[Any]:
    return choose(case.graph, build, executable=lambda c: c.executable, alike=alike_of(case.rule), **options)


def test_the_rule_compiles_one_form(case: test_forms.Case) -> None:
    build = Counted(case)
    found = chosen(case, build, limit_bytes=limit_bytes())
    assert build.forms == [DEFAULT]
    assert found.choice.form == DEFAULT and found.choice.iterations == (ROLL_FROM,)
    planned = memory(found.compiled.executable)
    assert planned is not None and found.choice.peak_bytes == planned.peak
    assert str(ROLL_FROM) in found.choice.why


@pytest.mark.long
def test_few_layers_stay_written_out() -> None:
    case = test_forms.Case(layers=ROLL_FROM - 3, make=plain)
    build = Counted(case)
    assert chosen(case, build).choice.form == "unrolled"
    assert build.forms == ["unrolled"]


def test_a_limit_makes_it_go_down_the_ladder_and_say_so(case: test_forms.Case) -> None:
    build = Counted(case)
    found = chosen(case, build, limit_bytes=1000)
    assert build.forms == [DEFAULT, "rolled+full", "inside"]
    assert "nothing fits" in found.choice.why
    smallest = min(c.peak_bytes for c in found.choice.considered if c.peak_bytes is not None)
    assert found.choice.peak_bytes == smallest


def test_tuning_measures_every_form_in_turn_and_is_remembered(case: test_forms.Case, tmp_path: Path) -> None:
    # another program ran during the first round, and during the second form of the last
    rounds = [[9.0] * 6, [5.0, 4.0, 1.0, 2.0, 3.0, 6.0], [5.0, 9.0, 2.0, 2.0, 3.0, 6.0]]
    build, times = Counted(case), iter([t for r in rounds for t in r])
    found = chosen(case, build, tune=lambda compiled: next(times), folder=tmp_path)
    assert len(build.forms) == 6
    assert (found.choice.form, found.choice.measured) == (build.forms[2], True)
    assert [c.seconds for c in found.choice.considered] == rounds[1]
    again = Counted(case)
    recalled = chosen(case, again, folder=tmp_path)
    assert again.forms == [found.choice.form]
    assert recalled.choice == found.choice
    other = Counted(case)
    assert not chosen(case, other, folder=tmp_path, extra="another optimizer").choice.measured


def test_a_damaged_memory_is_no_memory(tmp_path: Path) -> None:
    choice = Choice("rolled", None, "why", (Considered("rolled", 3, 2, 1.0, 0.5),), (12,), 10, True)
    remember(tmp_path, "key", choice)
    assert recall(tmp_path, "key") == choice
    (tmp_path / "key.json").write_text("{")
    assert recall(tmp_path, "key") is None
    assert recall(None, "key") is None


def test_another_program_has_another_fingerprint(case: test_forms.Case) -> None:
    deeper = test_forms.Case(layers=ROLL_FROM + 1)
    assert fingerprint(case.graph) == fingerprint(test_forms.Case(layers=ROLL_FROM).graph)
    assert fingerprint(case.graph) != fingerprint(deeper.graph)


def test_a_choice_reads_as_text(case: test_forms.Case) -> None:
    text = str(chosen(case, case.build, form="rolled+full", whole="clipping by the global norm").choice)
    assert text.startswith("rolled+full: asked for")
    assert "inside           not possible" in text and "not compiled" in text


class Chain(torch.nn.Sequential):
    def __init__(self, layers: int) -> None:
        super().__init__(
            *(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(layers))
        )


def test_thin_layers_run_written_out_and_may_be_rolled() -> None:
    def step(layers: int, **options: Any) -> Any:
        torch.manual_seed(0)
        model = Chain(layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return bridge.compile(
            model, lambda m, b: m(b).pow(2).sum(), optimizer, example_batch=x, certificate="none", **options
        )

    x = torch.ones(2, 4)
    plain, rolled = step(12), step(12, form="rolled+full")
    assert (plain.choice.form, plain.choice.iterations) == ("unrolled", (12,))
    assert plain.choice.why == f"what repeats does so 12 times at most; loops pay from {ROLL_FROM}"
    assert [float(rolled(x)) for _ in range(3)] == pytest.approx(
        [float(plain(x)) for _ in range(3)], rel=1e-6
    )
    few = step(4)
    assert few.choice.form == "unrolled" and "8 times or more" in few.choice.why
    with pytest.raises(bridge.Refused, match="no layers that repeat were found"):
        step(4, form="rolled")


def test_an_unknown_form_is_named_with_the_known_ones(case: test_forms.Case) -> None:
    with pytest.raises(ValueError, match="rolled\\+dots"):
        chosen(case, case.build, form="folded")


class Stepwise(torch.nn.Module):
    """A layer that goes through time, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, state, states = self.mix(x), x.new_zeros(x.shape[0], 3), []
        for t in range(x.shape[1]):
            state = torch.tanh(0.5 * state + torch.sin(x[:, t]).exp().neg())
            states.append(state)
        return torch.stack(states, 1)


@pytest.mark.parametrize(("steps", "form"), [(ROLL_FROM - 2, "unrolled"), (ROLL_FROM + 2, DEFAULT)])
def test_a_long_loop_inside_few_layers_counts(steps: int, form: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Stepwise() for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, steps, 3)
    step = bridge.compile(model, lambda m, b: m(b).pow(2).sum(), optimizer, example_batch=x, cache=False)
    assert step.choice.form == form
    layers, inside = step.choice.iterations
    assert layers == 3 and steps - 1 <= inside <= steps
    float(step(x))
    assert step.settled().ok


def test_a_choice_that_nobody_can_keep_is_said(tmp_path: Path) -> None:
    """A full disk, a read-only one: here a folder that not even root can make."""
    choice = Choice("rolled", None, "why", (Considered("rolled", 3, 2, 1.0, 0.5),), (12,), 10, True)
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match=r"is not kept in .*file.choices .*DETENTE_BRIDGE_CACHE"):
        remember(tmp_path / "file" / "choices", "key", choice)
