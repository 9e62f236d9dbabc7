"""A program in the making says so, and what a step is made of prints as a line."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch

import detente
from detente.bridge.telling import telling


def made(progress: bool | None) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    batch = torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(
        model,
        lambda m, b: m(b).square().mean(),
        optimizer,
        example_batch=batch,
        cache=False,
        progress=progress,
    )
    for _ in range(2):
        float(step(batch))
    return step


def test_progress_is_told_on_standard_error_and_can_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    made(True)
    told = capsys.readouterr()
    assert told.out == ""
    assert "detente: one program of the step of Linear: export, compile ... " in told.err
    assert "detente: certificate: the first step again in eager PyTorch ... " in told.err
    made(None)  # captured: no terminal
    made(False)
    assert capsys.readouterr().err == ""


def test_a_terminal_is_told_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with telling("a thing", None):
        pass
    assert stream.getvalue().startswith("detente: a thing ... ")
    with pytest.raises(ValueError), telling("another", None):
        raise ValueError
    assert stream.getvalue().endswith("another ...\n")
    with telling("nothing", False):
        pass
    assert "nothing" not in stream.getvalue()


def test_a_step_and_its_parts_are_a_line_each() -> None:
    step = made(False)
    assert repr(step).startswith("<Step of Linear: 2 taken, [<Program ") and len(repr(step)) < 300
    for part, kind in (
        (step.choice, "Choice"),
        (step.programs[0], "Program"),
        (step.certificate, "Certificate"),
    ):
        assert repr(part).startswith(f"<{kind} ") and len(repr(part)) < 100, repr(part)
    assert "full, passed" in repr(step.certificate)
