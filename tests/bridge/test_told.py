"""A call that takes longer than a second says what it does, and what a step is made of prints as a line."""

from __future__ import annotations

import dataclasses
import io
import logging
import re
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import detente
from detente.bridge import telling as telling_module
from detente.bridge.telling import phase, telling


def made(quiet: bool = False, **options: Any) -> Any:
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
        quiet=quiet,
        **options,
    )
    for _ in range(2):
        float(step(batch))
    return step


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert record.levelno == logging.INFO
        self.lines.append(record.getMessage())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every phase is long enough to be told, however fast the machine is: it begins when the ticker saw it."""
    monkeypatch.setattr(telling_module, "QUIET_FOR", 0.0)
    monkeypatch.setattr(telling_module, "SHORT", 0.0)
    monkeypatch.setattr(telling_module, "EVERY", 0.002)
    looks: list[None] = []

    class Seen(list[str]):
        def append(self, name: str) -> None:
            super().append(name)
            last = len(looks) + 2  # a look that had begun may not have seen it
            while len(looks) < last and tickers():
                time.sleep(0.001)

    for place in (telling_module._Line, telling_module._Lines):

        def look(self: Any, call: Any, tick: Any = place.tick) -> None:
            tick(self, call)
            looks.append(None)

        monkeypatch.setattr(place, "tick", look)
    begin = telling_module._Call.__init__

    def begun(call: Any, what: str) -> None:
        begin(call, what)
        call.inside = Seen()

    monkeypatch.setattr(telling_module._Call, "__init__", begun)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    handler, logger = Heard(), logging.getLogger("detente")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def tickers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "detente telling"]


@pytest.mark.usefixtures("at_once")
def test_a_terminal_has_one_line_that_is_written_over(
    monkeypatch: pytest.MonkeyPatch, heard: list[str]
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    step = made()
    told = stream.getvalue()
    lines = told.split("\n")
    assert len(lines) == 3 and lines[-1] == "", "one line each for compile and the certificate"
    for name in ("capture", "lower", "compile"):
        assert f"detente: step of Linear: {name} " in lines[0], name
    assert "certificate of the step of Linear: certify" in lines[1]
    shown = [line.split("\r")[-1] for line in lines[:2]]
    assert re.fullmatch(r"detente: step of Linear: [\d.]+ s \(capture [\d.]+.*\) *", shown[0]), shown[0]
    assert heard == [] and tickers() == []
    stream.truncate(0)
    for _ in range(3):
        float(step(torch.randn(4, 3)))
    assert stream.getvalue().strip("\0") == "", "a step that has its program says nothing"
    float(step(torch.randn(5, 3)))
    assert "a program of the step of Linear: capture" in stream.getvalue(), "a batch of another shape"


@pytest.mark.usefixtures("at_once")
def test_elsewhere_the_logger_is_told_once_for_every_phase(
    capsys: pytest.CaptureFixture[str], heard: list[str]
) -> None:
    made()
    assert capsys.readouterr() == ("", "")
    begun = [line.rsplit(", after", 1)[0] for line in heard]
    assert [b for i, b in enumerate(begun) if b == begun[i - 1]] == []
    assert begun.index("step of Linear: capture") < begun.index("step of Linear: compile")
    assert "certificate of the step of Linear: certify" in "\n".join(heard)
    assert re.fullmatch(r"certificate of the step of Linear: [\d.]+ s \(certify [\d.]+\)", heard[-1])


@pytest.mark.usefixtures("at_once")
def test_a_tuning_run_names_the_form_that_is_at_work(heard: list[str]) -> None:
    made(tune=True)
    told = "\n".join(heard)
    assert "step of Linear: tune unrolled (1 of " in told
    assert re.search(r"^step of Linear: [\d.]+ s \(capture .*tune .*\)$", told, re.MULTILINE), told


@pytest.mark.usefixtures("at_once")
def test_a_notebook_has_plain_lines(monkeypatch: pytest.MonkeyPatch, heard: list[str]) -> None:
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stderr", stream)
    made()
    told = stream.getvalue()
    assert "\r" not in told and "detente: step of Linear: capture, after 0 s\n" in told
    assert heard == []


@pytest.mark.usefixtures("at_once")
def test_quiet_says_nothing_anywhere(monkeypatch: pytest.MonkeyPatch, heard: list[str]) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    made(quiet=True)
    made(quiet=True, tune=True, certificate="short")
    assert stream.getvalue() == "" and heard == []


def test_what_takes_less_than_a_second_is_not_told(monkeypatch: pytest.MonkeyPatch, heard: list[str]) -> None:
    monkeypatch.setattr(telling_module, "QUIET_FOR", 60.0)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    made()
    assert stream.getvalue() == "" and heard == [] and tickers() == []


@pytest.mark.usefixtures("at_once")
def test_of_what_failed_the_error_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(ValueError, match="mine"), telling("a thing", False), phase("capture"):
        while "capture" not in stream.getvalue():
            time.sleep(0.001)
        raise ValueError("mine")
    assert stream.getvalue().endswith("\r") and "\n" not in stream.getvalue(), "the line is clean again"
    assert tickers() == []


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("error", [OSError, ValueError])
def test_a_stream_that_cannot_be_written_to_ends_no_call(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise error("closed")

    monkeypatch.setattr(sys, "stderr", Broken())
    assert made().count == 2
    monkeypatch.setattr(sys, "stderr", None)
    assert made().count == 2


@pytest.mark.usefixtures("at_once")
def test_a_ticker_whose_call_is_gone_ends_by_itself() -> None:
    """As where an interrupt comes between two lines of a ``finally``."""
    stream, stop = Terminal(), threading.Event()
    call = telling_module._Call("a thing")
    arguments = (weakref.ref(call), telling_module._Line(stream), stop)
    ticker = threading.Thread(target=telling_module._tick, args=arguments, daemon=True)
    ticker.start()
    while not stream.getvalue():
        time.sleep(0.001)
    del call
    ticker.join(30)
    assert not ticker.is_alive() and not stop.is_set()


INTERRUPTED = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what it puts behind itself without it
import torch
import detente
from detente.bridge import telling

telling.QUIET_FOR, telling.EVERY = 0.0, 0.002

def loss(model, batch):
    for _ in range(int(sys.argv[1])):
        os.kill(os.getpid(), signal.SIGINT)
    while int(sys.argv[1]) and "waits" not in sys.stderr.seen:
        pass  # the ticker says that it was heard
    return model(batch).square().mean()

class Terminal:
    seen = ""
    def isatty(self): return True
    def flush(self): pass
    def write(self, text): Terminal.seen += text

before, sys.stderr = sys.stderr, Terminal()
model = torch.nn.Linear(3, 2)
try:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    detente.compile(model, loss, optimizer, example_batch=torch.ones(2, 3), cache=False)
    print("compiled")
except KeyboardInterrupt:
    print("interrupted")
print([t.name for t in threading.enumerate() if t.name == "detente telling"], "Ctrl-C waits" in Terminal.seen)
"""


@pytest.mark.parametrize(("times", "ended", "told"), [(0, "compiled", False), (1, "interrupted", True)])
def test_after_an_interrupt_no_ticker_is_left(times: int, ended: str, told: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(times)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == [ended, f"[] {told}"], done.stdout + done.stderr


def test_two_interrupts_stop_at_once_and_leave_no_ticker() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "2"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.startswith("interrupted\n[] "), done.stdout + done.stderr


def test_a_step_and_its_parts_are_a_line_each() -> None:
    step = made(quiet=True)
    assert repr(step).startswith("<Step of Linear, SGD: 2 steps taken; ") and len(repr(step)) < 300
    for part, kind in (
        (step.choice, "Choice"),
        (step.programs[0], "Program"),
        (step.certificate, "Certificate"),
    ):
        assert repr(part).startswith(f"<{kind} ") and len(repr(part)) < 100, repr(part)
    assert "full, passed" in repr(step.certificate)


@dataclasses.dataclass
class Row:
    x: torch.Tensor
    uses: int = 0


def into_a_dictionary(model, batch):
    batch["made"] = model(batch["x"])
    return batch["made"].square().mean()


def over_what_was_there(model, batch):
    hidden = model(batch["x"]) + batch["state"]
    batch["state"] = hidden.detach()
    return hidden.square().mean()


def onto_a_list(model, batch):
    batch.append(model(batch[0]))
    return batch[-1].square().mean()


def into_a_field(model, batch):
    batch.uses += 1
    return model(batch.x).square().mean()


def out_of_it(model, batch):
    return model(batch.pop("x")).square().mean()


@pytest.mark.parametrize(
    ("loss", "batch", "told"),
    [
        (into_a_dictionary, lambda x: {"x": x}, "batch['made']"),
        (over_what_was_there, lambda x: {"x": x, "state": torch.zeros(3, 2)}, "batch['state']"),
        (onto_a_list, lambda x: [x], "batch[1]"),
        (into_a_field, Row, "batch.uses"),
        (out_of_it, lambda x: {"x": x}, ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_loss_puts_into_its_batch_is_told_once(loss, batch, told, tmp_path, monkeypatch):
    """A loop that gives the same batch again finds in eager what the last step left there. From a stored program,
    too."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    for _ in range(2):
        model = torch.nn.Linear(4, 2)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            given = batch(torch.ones(3, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            step = detente.compile(model, loss, optimizer, example_batch=given, quiet=True)
            float(step(given))
            float(step(batch(torch.ones(3, 4))))
        said = [str(one.message) for one in found if "into its batch" in str(one.message)]
        assert len(said) == bool(told)
        assert not told or f"puts {told} into" in said[0]
