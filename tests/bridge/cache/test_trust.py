"""A cached program is a pickle, and a pickle is code: the folder is the user's own, or it is not used."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import detente
from detente.bridge import folder
from detente.bridge.cache.describe import Writer
from detente.bridge.cache.entry import Name, load
from detente.bridge.folder import trusted


@pytest.fixture(autouse=True)
def anew() -> None:
    folder._say.cache_clear()


def step_of() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = {"x": torch.ones(4, 3)}
    return detente.compile(model, lambda m, b: m(b["x"]).square().mean(), optimizer, example_batch=batch)


def run() -> list[float]:
    step = step_of()
    return [float(step({"x": torch.ones(4, 3)})) for _ in range(2)]


def test_the_folder_and_its_files_are_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "deep" / "cache"
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(place))
    old = os.umask(0)
    try:
        run()
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    files = list(place.iterdir())
    assert any(f.suffix == ".program" for f in files)
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_a_folder_that_others_may_write_is_not_used(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(place))
    before = run()
    planted = list(place.glob("*.program"))
    assert planted
    for file in planted:
        file.write_bytes(_bomb(tmp_path / "executed"))
    place.chmod(mode)
    assert run() == before
    said = capfd.readouterr().err
    assert said.count("going on without the cache") == 1 and f"{mode:o}" in said
    assert not (tmp_path / "executed").exists()


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    place = tmp_path / "cache"
    place.mkdir(mode=0o700)
    (place / "name.program").write_bytes(_bomb(tmp_path / "executed"))
    if os.geteuid() == 0:
        os.chown(place, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    assert not trusted(place)
    assert load(place, Name("name", Writer()), None, None) is None  # type: ignore[arg-type]
    assert "belongs to user" in capfd.readouterr().err
    assert not (tmp_path / "executed").exists()


def test_a_place_that_cannot_be_made_costs_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / "file" / "cache"))
    assert len(run()) == 2
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / "file"))
    assert len(run()) == 2


def test_a_user_without_a_home_goes_on_without_the_cache(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """As in a container that runs under a number that no one has."""
    pwd = pytest.importorskip("pwd")

    def nobody(*_: Any) -> Any:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "XDG_CACHE_HOME", "DETENTE_BRIDGE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert folder.users() is None and folder.folder() is None
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", "~/cache")
    assert folder.folder() is None
    assert len(run()) == 2
    assert capfd.readouterr().err.count("no home folder") == 1


@pytest.mark.parametrize("told", ["off", "OFF", "", "0", "none", "None", "no", "false"])
def test_words_for_no_cache_are_no_folders(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", told)
    assert folder.folder() is None


def test_a_folder_is_named_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", "~/mine")
    assert folder.folder() == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", "beside")  # and it stays there when the loop goes elsewhere
    assert folder.folder() == tmp_path / "beside"
    monkeypatch.delenv("DETENTE_BRIDGE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/of_all")
    assert folder.folder() == tmp_path / "of_all" / "detente" / "bridge"


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def _bomb(path: Path) -> bytes:
    return pickle.dumps(_Bomb(path))
