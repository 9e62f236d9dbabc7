"""``tune="background"``: training begins in a loop, the written-out form is made meanwhile, certified, measured, and
used where it is faster. Everything really runs; what is planted is said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.choose.choose import DEFAULT, QUICK_FROM
from detente.bridge.step import making, switching, variants

LAYERS, LIMIT_S = QUICK_FROM + 1, 120


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 2**40
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x)))))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).pow(2).mean()


def training(**options: Any) -> tuple[Any, Callable[[int], Any]]:
    """A step of the same model each time, and its batch of each number."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(4)]
    step = bridge.compile(
        model, loss, optimizer, example_batch=batches[0], **({"seed": 0, "quiet": True} | options)
    )
    return step, lambda number: batches[number % 4]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other form is made from the first step on."""
    monkeypatch.setattr(variants, "TIMES_A_LOOP", 0)


@pytest.fixture
def written_out_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what is measured of steps as small as these is chance."""
    real = switching.measure

    def measured(compiled: Any, *rest: Any) -> float:
        assert real(compiled, *rest) > 0
        return 2.0 if compiled.program.stacks else 1.0

    monkeypatch.setattr(switching, "measure", measured)


def until_settled(step: Any, batch: Callable[[int], Any]) -> list[float]:
    """Losses of the steps until the other form has come, and of three more."""
    begun, losses = time.monotonic(), []
    while step.programs[0].later is not None:
        losses.append(float(step(batch(len(losses))).detach()))
        time.sleep(0.01)
        assert time.monotonic() - begun < LIMIT_S
    return losses + [float(step(batch(len(losses) + k)).detach()) for k in range(3)]


def same_training(step: Any, losses: list[float], **options: Any) -> None:
    """As a step that was written out from the beginning: the same masks, and the last digits apart."""
    other, batch = training(form="unrolled", certificate="none", **options)
    expected = [float(other(batch(k)).detach()) for k in range(len(losses))]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2e-3, atol=1e-5)
    assert step.count == other.count
    for name, value in other.state_dict().items():
        if not value.is_floating_point():
            assert torch.equal(step.state_dict()[name], value), name


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.long), {"accumulate": 2, "clip_norm": 1.0, "ema": 0.9}]
)
def test_training_begins_in_a_loop_and_goes_on_written_out(
    at_once: None, written_out_wins: None, options: dict[str, Any]
) -> None:
    step, batch = training(tune="background", **options)
    assert step.choice.form == DEFAULT and "while training goes on" in step.choice.why
    losses = until_settled(step, batch)
    assert (step.choice.form, step.choice.measured) == ("unrolled", True)
    timed = {c.form: c.seconds for c in step.choice.considered if c.seconds is not None}
    assert timed == {DEFAULT: 2.0, "unrolled": 1.0}
    assert all(c.peak_bytes for c in step.choice.considered if c.seconds is not None)
    assert step.certificate is not None and step.certificate.ok and len(step.programs) == 1
    same_training(step, losses, **options)


def test_what_is_no_faster_is_not_used(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switching, "measure", lambda compiled, *rest: 1.0 if compiled.program.stacks else 2.0)
    step, batch = training(tune="background")
    certified: list[Any] = []
    losses = until_settled(step, lambda k: (certified.append(step.certificate), batch(k))[1])
    assert (step.choice.form, step.choice.measured) == (DEFAULT, True)
    assert step.certificate is certified[-1] is not None
    same_training(step, losses)


def test_a_form_whose_certificate_fails_is_not_used_and_nothing_moves(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the other form updates by a hundredth too much."""
    real = making.choose

    class Wrong:
        def __init__(self, compiled: Any) -> None:
            self._compiled = compiled

        def __getattr__(self, name: str) -> Any:
            return getattr(self._compiled, name)

        def __call__(self, *arguments: Any) -> Any:
            changed, *rest = self._compiled(*arguments)
            return ({n: v * 1.01 if "float" in str(v.dtype) else v for n, v in changed.items()}, *rest)

    def chosen(*arguments: Any, quick: bool = False, **keywords: Any) -> Any:
        found = real(*arguments, quick=quick, **keywords)
        return found if quick else replace(found, compiled=Wrong(found.compiled))

    monkeypatch.setattr(making, "choose", chosen)
    step, batch = training(tune="background")
    with pytest.warns(UserWarning, match="the form unrolled is not used: its certificate failed"):
        losses = until_settled(step, batch)
    assert step.choice.form == DEFAULT and not step.choice.measured
    assert step.certificate is not None and step.certificate.ok
    monkeypatch.setattr(making, "choose", real)
    same_training(step, losses)


def test_what_cannot_be_compiled_is_told_and_training_goes_on(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = making.choose

    def chosen(*arguments: Any, quick: bool = False, **keywords: Any) -> Any:
        if not quick:
            raise RuntimeError("no space left\non the device")
        return real(*arguments, quick=quick, **keywords)

    monkeypatch.setattr(making, "choose", chosen)
    step, batch = training(tune="background")
    assert torch.tensor(until_settled(step, batch)).isfinite().all()
    assert step.choice.form == DEFAULT and "no space left" in step.choice.why


def test_what_fails_while_it_is_tried_ends_no_training(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*arguments: Any) -> float:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(switching, "measure", measured)
    step, batch = training(tune="background")
    losses = until_settled(step, batch)
    assert step.choice.form == DEFAULT and "RESOURCE_EXHAUSTED" in step.choice.why
    same_training(step, losses)


def test_without_memory_for_copies_it_is_not_tried(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switching, "available_bytes", lambda: 1000)
    step, batch = training(tune="background")
    until_settled(step, batch)
    assert step.choice.form == DEFAULT and "does not fit beside this one" in step.choice.why


def test_weights_that_are_written_meanwhile_are_the_ones_it_goes_on_with(
    at_once: None, written_out_wins: None
) -> None:
    step, batch = training(tune="background")
    begun, count = time.monotonic(), 0
    while step.programs[0].later is not None:
        step(batch(count))
        with torch.no_grad():
            step.model[0].up.weight.fill_(0.25)
        count += 1
        assert time.monotonic() - begun < LIMIT_S
    assert step.choice.form == "unrolled" and step.certificate is not None and step.certificate.ok
    assert torch.equal(step.state_dict()["0.up.weight"], torch.full((16, 8), 0.25))


def test_later_processes_begin_in_the_form_that_won(
    at_once: None, written_out_wins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    step, batch = training(tune="background")
    until_settled(step, batch)
    certificate = step.certificate
    for tune in (False, "background"):
        again, _ = training(tune=tune)
        (program,) = again.programs
        assert program.cached and program.later is None and again.choice.form == "unrolled"
        again(batch(0))
        assert again.settled().rows == certificate.rows  # that of the form that runs, from the disk


def test_a_process_that_ends_before_leaves_no_loop_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    monkeypatch.setattr(variants, "TIMES_A_LOOP", 1e6)
    step, batch = training(tune="background")
    step(batch(0))
    assert step.choice.form == DEFAULT and step.programs[0].later is not None
    going_on, _ = training(tune="background")
    assert going_on.programs[0].cached and going_on.programs[0].later is not None
    plain, _ = training()
    assert not plain.programs[0].cached and plain.choice.form == "unrolled"


def test_a_certificate_is_one_forms_and_not_one_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tune=True`` put another form in the place of a certified one, under its name, and that was never certified."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    step, batch = training()
    step(batch(0))
    assert step.settled().stored == ""
    again, _ = training()
    again(batch(0))
    assert again.settled().stored != ""
    tuned, _ = training(tune=True)
    assert not tuned.programs[0].cached
    tuned(batch(0))
    assert tuned.settled().stored == ""  # made now, against eager
    later, _ = training()
    later(batch(0))
    assert later.programs[0].cached and later.choice.form == tuned.choice.form
    assert later.settled().stored != ""


SHORT = """
import sys
sys.path.insert(0, {here!r})
from detente.bridge.step import variants
import test_background
variants.TIMES_A_LOOP = 0
step, batch = test_background.training(tune="background")
for k in range(1):
    value = step(batch(k))
print("ended at", step.count, step.programs[0].later is not None)
"""


@pytest.mark.long
def test_a_script_that_ends_meanwhile_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT.format(here=str(Path(__file__).parent))],
        env={
            **os.environ,
            "DETENTE_BRIDGE_CACHE": "off",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ended at 1 True" and "Error" not in done.stderr


def test_a_wrong_word_is_refused() -> None:
    with pytest.raises(ValueError, match="tune is 'later'; it is True, False or 'background'"):
        training(tune="later")
