"""What a step, a certificate and a choice show of themselves to a person, in a line and in a notebook."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge.certify.certificate import Certificate, Row
from detente.bridge.lower.driver import load_table
from detente.bridge.lower.table import TABLE
from detente.bridge.refusal import Refused
from detente.bridge.state.birth import Birth
from detente.bridge.step.step import Step

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def made(model: nn.Module | None = None, **options: Any) -> Step:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    return detente.compile(
        model, lambda m, x: m(x).square().mean(), adam, example_batch=X, cache=False, seed=0, **options
    )


class Table(HTMLParser):
    """The texts of the cells, the names of the tags, and every attribute."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes |= dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(thing: Any) -> str:
    """The line; the table says the same where it is a step's, and carries nothing that it must not."""
    html = Table(thing._repr_html_())
    assert html.open == []
    assert set(html.tags) <= {"table", "caption", "b", "tbody", "tr", "th", "td"}
    assert set(html.attributes) == {"style"}
    styles = set(re.findall(r"style=\"([^\"]*)\"", thing._repr_html_()))
    assert all(
        not re.search(r"(?:^|;)(?:color|background):(?!inherit|transparent)", style) for style in styles
    )
    line = repr(thing)
    if isinstance(thing, Step):
        assert all(text in line for text in html.texts if text.endswith(("taken", "passed", "date")))
    assert "\n" not in line and len(line) < 300
    return line


def test_a_step_tells_where_it_stands() -> None:
    step = made()
    line = shown(step)
    assert line.startswith(
        "<Step of Sequential, Adam: 0 steps taken; 1 program (unrolled); certificate none yet; "
    )
    assert re.search(r"state of [\d.]+ B on cpu:0; live module up to date>$", line)
    step(X)
    line = shown(step)
    assert "1 step taken" in line and "certificate open until" in line and "live module behind" in line
    step(X)
    assert "2 steps taken" in shown(step)
    assert re.search(r"certificate full passed for \d+ tensors; state", shown(step))
    step(X[:3])
    assert "2 programs (unrolled, unrolled)" in shown(step) and "tensors, open until" in shown(step)
    step.sync_to_torch()
    assert "live module up to date" in shown(step)
    assert "certificate not asked for" in shown(made(certificate="none"))


def test_to_show_a_step_changes_and_makes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    step = made()
    shown(step)
    assert isinstance(step._state._optimizer, Birth), "the optimizer's first state is not made to be shown"
    step(X)
    waiting = step._open
    for name in ("_write_back", "_settle", "_make_certificate", "_book", "wait", "_step"):
        monkeypatch.setattr(step, name, None)  # to call one of them raises, and the line would not be whole
    assert "1 step taken" in shown(step) and "1 step taken" in step._repr_html_()
    assert step._open is waiting and waiting is not None and step._guard.behind and step.certificate is None


def test_a_step_that_refused_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    step = made()
    step(X)
    with pytest.raises(Refused):
        step({"x": X})
    assert "1 step taken" in shown(step) and "full passed" in shown(step)

    load_table()
    plain = TABLE["aten.tanh.default"]
    monkeypatch.setitem(
        TABLE, plain.op, replace(plain, lower=lambda call, *a, **k: plain.lower(call, *a, **k) * 1.01)
    )
    step = made()
    step(X)
    with pytest.raises(Refused, match="certificate"):
        step(X)
    line = shown(step)
    assert re.search(
        r"certificate full FAILED in \d+ of \d+ tensors, the state is that of before its step", line
    )
    assert "0 steps taken" in line
    assert step.certificate is not None and "FAILED" in step.certificate._repr_html_()
    assert "failed in" in shown(step.certificate)


def test_one_that_is_being_made_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a debugger does, and a traceback that shows local values: at the start of every function of the step's own."""
    step = Step.__new__(Step)
    assert repr(step) == "<Step of NoneType, NoneType: between two states>"
    assert "between two states" in step._repr_html_()
    seen: dict[str, str] = {}

    def looking(name: str, function: Any) -> Any:
        def call(self: Step, *args: Any, **kwargs: Any) -> Any:
            seen[name] = repr(self) + self._repr_html_()
            return function(self, *args, **kwargs)

        return call

    for name, function in inspect.getmembers(Step, inspect.isfunction):
        if not name.startswith("__") and name != "_repr_html_":
            monkeypatch.setattr(Step, name, looking(name, function))
    step = made()
    for _ in range(3):
        step(X)
    step.sync_to_torch()
    assert {"_follow", "_load", "_step", "_run", "_book", "_write_back"} <= set(seen)
    assert all(text.startswith("<Step of Sequential, Adam: ") for text in seen.values())
    assert "3 steps taken" in repr(step)


def test_names_of_the_users_are_escaped() -> None:
    evil = type("<script>alert(1)</script>&", (nn.Linear,), {})
    html = made(evil(8, 4))._repr_html_()
    assert "<script" not in html and "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in html
    rows = (Row("update", "<img src=x>", 2.0, 1.0, 1.0),)
    html = Certificate("full", "torch & more", rows, {}, of="<b>")._repr_html_()
    assert (
        "<img" not in html
        and "&lt;img src=x&gt;" in html
        and "torch &amp; more" in html
        and "&lt;b&gt;" in html
    )


def test_a_certificate_shows_its_kinds_and_what_failed() -> None:
    step = made(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
    step(X)
    step(X)
    assert step.certificate is not None
    texts = Table(step.certificate._repr_html_()).texts
    assert {"loss", "gradient", "buffer", "update"} <= set(texts) and "passed" in texts
    assert shown(step.certificate).startswith("<Certificate full, passed, ")
    many = tuple(Row("gradient", f"w{i}", 2.0, 1.0, 1.0) for i in range(9))
    html = Certificate("full", "torch eager", (Row("loss", "loss", 0.0, 0.0, 0.0), *many), {})._repr_html_()
    assert "FAILED (9 tensors)" in html and "w0, w1, w2, w3, w4 and 4 more" in html
    assert Certificate("none", "nothing", (), {})._repr_html_()


def test_a_choice_shows_every_form() -> None:
    choice = made(tune=True).choice
    texts = Table(choice._repr_html_()).texts
    assert [t for t in texts if t in {c.form for c in choice.considered}] == [
        c.form for c in choice.considered
    ]
    assert "this one" in texts and any(t.startswith("not possible: ") for t in texts)
    assert shown(choice).startswith("<Choice unrolled, of ")
