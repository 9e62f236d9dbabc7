"""The user's own files belong to a session: edited between its parts, or while it runs, they end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detente.records.evidence import Evidence
from detente.records.fault import UsageFault
from detente.records.session import Session
from detente.session import workers as module
from detente.session.asked import settings_of
from detente.session.edited import Unedited, digests
from detente.session.fingerprint import OWN_FILES, take_fingerprint
from detente.session.interrupts import Interrupts
from detente.session.layout import lay_out
from detente.session.request import Request
from detente.session.run import _continue
from detente.session.spawn import Spawned
from detente.session.workers import Workers
from detente.store.spool import Spool

STACK = """
from beside import factor
from detente.stacks.jax_jit import JaxJit


class Mine(JaxJit):
    pass
"""
MODEL = """
import torch


def make():
    return torch.nn.Linear(2, 1), None, None
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / f"{name}.py" for name in ("mine", "model", "beside", "other")}
    found["mine"].write_text(STACK)
    found["model"].write_text(MODEL)
    found["beside"].write_text("factor = 1\n")
    found["other"].write_text("nobody imports this\n")
    return found


def asked(files: dict[str, Path]) -> Request:
    stacks = (f"{files['mine']}:Mine", "torch-eager")
    return Request(("ffn", f"{files['model']}:make"), stacks, blocks=1, aa=False)


def settings(files: dict[str, Path]) -> dict[str, Any]:
    request = asked(files)
    return settings_of(request, lay_out(request))


def edit(file: Path) -> None:
    file.write_text(file.read_text() + "\n# another program\n")


def test_a_session_holds_what_its_files_were_and_no_folder(files: dict[str, Path]) -> None:
    told = settings(files)[OWN_FILES]
    assert list(told) == ["beside.py", "mine.py", "model.py"]
    assert str(files["mine"].parent) not in str(told)
    assert OWN_FILES not in settings_of(Request(("ffn",)), lay_out(Request(("ffn",))))


@pytest.mark.parametrize("name", ["mine", "model", "beside"])
def test_a_file_that_was_edited_between_its_parts_ends_a_session(
    name: str, files: dict[str, Path], tmp_path: Path
) -> None:
    before = take_fingerprint(settings(files))
    session = Session("x", 1.0, (), before, lay_out(asked(files)).cells)
    Spool.create(tmp_path / "spools", session).close()
    place = tmp_path / "spools" / "x.jsonl"
    _continue(place, take_fingerprint(settings(files)))[0].close()
    edit(files["other"])
    _continue(place, take_fingerprint(settings(files)))[0].close()
    edit(files[name])
    with pytest.raises(UsageFault, match=rf"x cannot be continued: {name}\.py was edited"):
        _continue(place, take_fingerprint(settings(files)))


def test_files_of_one_name_are_told_as_one(files: dict[str, Path], tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    (again / "mine.py").write_text(STACK)
    request = Request(("ffn",), (f"{files['mine']}:Mine", f"{again / 'mine.py'}:Mine"), aa=False)
    before = digests(lay_out(request).cells)
    assert list(before) == ["beside.py", "mine.py"]
    for file in (files["mine"], again / "mine.py"):
        edit(file)
        after = digests(lay_out(request).cells)
        assert after["mine.py"] != before["mine.py"]
        before = after


@pytest.mark.parametrize("when", ["before", "while it runs"])
def test_a_file_that_is_edited_meanwhile_ends_it_and_the_process_is_not_kept(
    when: str, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, detente: Any
) -> None:
    request = asked(files)
    cells = lay_out(request).cells
    started = []

    def spawn(*_: Any, **__: Any) -> Spawned:
        started.append(1)
        if when == "while it runs":
            edit(files["beside"])
        return Spawned(Evidence("ok", "done"), 0.0, 1.0, 0.0, {})

    monkeypatch.setattr(module, "spawn", spawn)
    with Interrupts() as interrupts:
        check = Unedited(cells, digests(cells), "20261128-x").check
        own = Workers(request, "x", interrupts, check)
        if when == "before":
            own.run("probe", cells[0], lambda phase: None)
            edit(files["mine"])
        with pytest.raises(UsageFault) as fault:
            own.run("probe", cells[0], lambda phase: None)
    assert "was edited while it ran" in fault.value.message and "--resume" in fault.value.hint
    assert len(started) == 1
