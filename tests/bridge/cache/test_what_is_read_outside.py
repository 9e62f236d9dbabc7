"""What code asks for outside of Python while a program is captured: no other process is given that program, and where
eager would ask again in every step a warning says so, once. And what is installed counts as the user's own."""

from __future__ import annotations

import importlib
import io
import json
import linecache
import logging
import os
import pickle
import socket
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch import nn

import detente
from detente.bridge.live.python import in_library

X = torch.ones(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.table: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of every kind, all of which say 1, and a cache."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    np.ones(1, np.float32).tofile("one.bin")
    np.save("one.npy", np.ones(1, np.float32))
    Path("one.json").write_text("1.0")
    Path("one.pickle").write_bytes(pickle.dumps(1.0))
    torch.save({"one": 1.0}, "one.pt")
    save_file({"one": np.ones(1)}, "one.safetensors")
    with sqlite3.connect("one.db") as held:
        held.execute("create table t (x)")
        held.execute("insert into t values (1.0)")
    held.close()
    return tmp_path


def compiled(loss: Any) -> tuple[Any, list[str]]:
    """A step, and what was said of files."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step = detente.compile(model, loss, optimizer, example_batch=X, certificate="none", quiet=True)
        for _ in range(3):
            float(step(X))
    return step, [str(one.message) for one in told if "look again" in str(one.message)]


def of(reads: Any) -> Any:
    return lambda model, x: model(x).square().mean() * float(reads())


def of_a_connection() -> Any:
    held = sqlite3.connect("one.db")
    return lambda: held.execute("select x from t").fetchone()[0]


def of_a_stream() -> Any:
    held = open("one.json")  # noqa: SIM115

    def read() -> float:
        held.seek(0)
        return float(held.read())

    return read


def a_slice() -> float:
    with safe_open("one.safetensors", "np") as held:
        return 1.0 if held.get_slice("one").get_shape() else 0.0


READS = {
    "fromfile": lambda: lambda: np.fromfile("one.bin", np.float32)[0],
    "np.load": lambda: lambda: np.load("one.npy")[0],
    "memmap": lambda: lambda: np.memmap("one.bin", np.float32)[0],
    "torch.load": lambda: lambda: torch.load("one.pt")["one"],
    "load_file": lambda: lambda: load_file("one.safetensors")["one"][0],
    "safe_open": lambda: a_slice,
    "text": lambda: lambda: Path("one.json").read_text(),
    "pickle": lambda: lambda: pickle.loads(Path("one.pickle").read_bytes()),
    "exists": lambda: lambda: Path("one.json").exists(),
    "isfile": lambda: lambda: os.path.isfile("one.json"),
    "listdir": lambda: lambda: len(os.listdir(".")) > 0,
    "glob": lambda: lambda: len([*Path().glob("*.json")]),
    "sqlite": lambda: lambda: sqlite3.connect("one.db").execute("select x from t").fetchone()[0],
    "a connection": of_a_connection,
    "a stream": of_a_stream,
    "getcwd": lambda: lambda: len(os.getcwd()) > 0,
    "a process": lambda: lambda: subprocess.run(["true"], check=False).returncode == 0,
    "a name": lambda: lambda: len(socket.getaddrinfo("localhost", 80)) > 0,
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_in_every_step_is_told_once_and_not_kept(name: str) -> None:
    step, told = compiled(of(READS[name]()))
    # What is held open has no description either, and that is said first.
    assert "test_what_is_read_outside.py" in step.programs[0].uncached or "connection" in name
    assert len(told) == 1 and "test_what_is_read_outside.py" in told[0]


def test_a_file_is_named_and_so_is_who_reads_it() -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x).mean() * float(np.fromfile("one.bin", np.float32)[0])

    step, (told,) = compiled(loss)
    assert "loss (" in told and "reads one.bin" in told and "one.bin" in step.programs[0].uncached


class Lazily(Net):
    """Reads its table in the first forward, and keeps it: so does eager."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = json.loads(Path("one.json").read_text())
        return self.linear(x) * self.table


def test_what_is_read_once_is_not_told() -> None:
    model = Lazily()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step = detente.compile(model, lambda m, x: m(x).mean(), optimizer, example_batch=X, quiet=True)
        for _ in range(3):
            float(step(X))
    assert not [one for one in told if "look again" in str(one.message)]
    assert all(program.uncached for program in step.programs[:1])


def quotes(model: Any, x: torch.Tensor) -> torch.Tensor:
    """What opens no file that could decide: a line of its own source, a record, a stream in memory, an import."""
    linecache.clearcache()
    linecache.getline(__file__, 1)
    logging.getLogger("detente.test").warning("seen")
    sys.modules.pop("colorsys", None)
    importlib.import_module("colorsys")
    return model(x).mean() * len(io.StringIO("a").read())


def test_imports_records_and_messages_are_no_question() -> None:
    step, told = compiled(quotes)
    assert not told and step.programs[0].uncached == ""


def test_a_file_that_is_another_one_whenever_it_is_read_is_refused(tmp_path: Path) -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        with open("count", "a+") as file:
            file.write("x")
            file.seek(0)
            return model(x).mean() * len(file.read())

    with pytest.raises(detente.bridge.Refused, match=r"another number whenever it is asked .*reads count"):
        compiled(loss)


PACKAGE = """
BETA = 0.0


class Settings:
    scale = 1.0


def penalty(weight):
    return BETA * Settings.scale * weight.square().sum()
"""


@pytest.fixture
def hyplib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of the user's own that is installed."""
    folder = tmp_path / "site-packages" / "hyplib"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder.parent))
    yield importlib.import_module("hyplib")
    del sys.modules["hyplib"]


def test_settings_of_an_installed_package_are_the_users_own(hyplib: Any) -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean() + hyplib.penalty(model.linear.weight)

    def run() -> Any:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return detente.compile(model, loss, optimizer, example_batch=X, certificate="none", quiet=True)

    first, second = run(), run()
    assert not first.programs[0].cached and second.programs[0].cached  # it is described, and stays the same
    before = float(second(X))
    hyplib.BETA = 1.0
    third = run()
    assert not third.programs[0].cached and float(third(X)) > before  # in another process
    penalty = float(Net().linear.weight.detach().square().sum())
    for beta, scale in ((1.0, 1.0), (2.0, 0.5), (2.0, 1.0)):  # within this one
        second.restart(Net().state_dict())
        hyplib.BETA, hyplib.Settings.scale = beta, scale
        assert float(second(X)) == pytest.approx(before + beta * scale * penalty, rel=1e-5)


def test_packages_that_are_known_are_libraries() -> None:
    assert all(map(in_library, (torch.__file__, np.__file__, os.__file__, pytest.__file__, None)))
    assert in_library("/x/site-packages/six.py") is False and not in_library("/home/me/train.py")
    assert in_library("/x/dist-packages/einops/layers/torch.py")
