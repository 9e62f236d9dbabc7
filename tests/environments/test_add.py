"""Environments made for real, small and offline: one wheel from a folder instead of gigabytes from an index.

The wheel and the recipe are the test's; venv, pip, the lock, the record and every fault are the real ones. The real
recipe is made by hand and by ``detente stacks add torch-xla`` (docs/environments.md tells how it was tried).
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from detente.environments import python_of
from detente.environments.add import Plan, add, folder_bytes, remove
from detente.environments.add import plan as plan_of
from detente.environments.installer import PIP, Installer, choose_installer
from detente.environments.place import RECORD, folder_of, read_record, state_of
from detente.environments.recipe import RECIPES, Recipe, check_machine, find_recipe
from detente.records.fault import MachineFault, UsageFault

THIS = (sys.version_info.minor,)


def wheel(
    folder: Path, name: str, version: str, modules: dict[str, str], requires: tuple[str, ...] = ()
) -> None:
    """A pure wheel as any build tool writes it: modules, METADATA, WHEEL, RECORD with hashes."""
    info = f"{name}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    files = dict(modules)
    files[f"{info}/METADATA"] = "\n".join(lines) + "\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def recipe(*packages: str, probe: tuple[str, ...] = ("small",), size: int = 30_000_000) -> Recipe:
    here = (os.uname().sysname, os.uname().machine)
    return Recipe("trial", "a trial", packages, probe, size, 1000, THIS, (here,))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Installer:
    """pip in a copy of one virtual environment: making each anew would be most of this file's time."""
    template = tmp_path_factory.mktemp("venv") / "template"
    subprocess.run([part.format(folder=template) for part in PIP.create], check=True, timeout=300)
    return Installer("pip", ("cp", "-a", str(template), "{folder}"), PIP.install, PIP.again)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: Installer) -> Iterator[Recipe]:
    """A recipe of one wheel that needs another, both in a folder; no index is asked."""
    wheels = tmp_path / "wheels"
    wheel(wheels, "small", "1.0", {"small.py": "import smaller\nVALUE = smaller.VALUE\n"}, ("smaller==2.5",))
    wheel(wheels, "smaller", "2.5", {"smaller.py": "VALUE = 7\n", "smaller_data.txt": "x" * 1000})
    monkeypatch.setenv("DETENTE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr("detente.environments.add.choose_installer", lambda: copied)
    yield recipe("small==1.0")


@pytest.fixture
def told() -> list[str]:
    return []


def made(chosen: Recipe, tell: Callable[[str], None] = lambda line: None) -> Plan:
    plan = plan_of(chosen)
    add(plan, tell)
    return plan


def test_it_is_made_recorded_found_and_removed(trial: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detente.environments.add.choose_installer", lambda: PIP)
    before = plan_of(trial)
    assert (before.state, before.nothing_to_do, python_of("trial")) == ("absent", False, None)
    made(trial)
    python = python_of("trial")
    assert python is not None
    code = "import small; print(small.VALUE)"
    assert (
        subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout == "7\n"
    )
    record = read_record(folder_of("trial"))
    assert record is not None
    assert record.installed.items() >= {"small": "1.0", "smaller": "2.5"}.items()
    assert record.requested == ("small==1.0",)
    assert record.installer.startswith("pip ")
    assert record.python == sys.version.split()[0]
    assert plan_of(trial).nothing_to_do
    assert json.loads((folder_of("trial") / RECORD).read_text())["schema"] == "detente/environment/1"
    assert remove("trial") > 1000
    assert (python_of("trial"), remove("trial")) == (None, 0)


def test_what_an_installer_left_half_done_is_made_whole(trial: Recipe, told: list[str]) -> None:
    """Killed while it copied: metadata is there, a module is not, and pip takes the distribution for installed."""
    made(trial)
    folder = folder_of("trial")
    (folder / RECORD).unlink()
    (lost,) = folder.rglob("smaller.py")
    lost.unlink()
    assert (python_of("trial"), state_of("trial", trial.packages)) == (None, "unfinished")
    made(trial, told.append)
    assert any("half-installed" in line and "smaller" in line for line in told)
    assert lost.exists() and python_of("trial") is not None


def test_an_environment_without_a_working_python_is_made_anew(trial: Recipe, told: list[str]) -> None:
    made(trial)
    (folder_of("trial") / "bin" / "python").unlink()
    assert (python_of("trial"), state_of("trial", trial.packages)) == (None, "unfinished")
    made(trial, told.append)
    assert any("made anew" in line for line in told)
    assert python_of("trial") is not None


def test_a_broken_record_is_no_record(trial: Recipe) -> None:
    made(trial)
    (folder_of("trial") / RECORD).write_text('{"schema": "detente/environment/1", "name": 3')
    assert python_of("trial") is None
    made(trial)
    assert python_of("trial") is not None


def test_other_pins_replace_the_old_ones(trial: Recipe, tmp_path: Path) -> None:
    made(trial)
    wheel(tmp_path / "wheels", "small", "1.1", {"small.py": "VALUE = 8\n"})
    newer = recipe("small==1.1")
    assert state_of("trial", newer.packages) == "other versions"
    made(newer)
    record = read_record(folder_of("trial"))
    assert record is not None and record.installed["small"] == "1.1"


def test_interrupted_it_leaves_an_unfinished_one_and_a_second_try_finishes_it(
    trial: Recipe, tmp_path: Path, copied: Installer
) -> None:
    """Ctrl-C for real: a process of its own, the signal to its whole group while the installer runs."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import subprocess, sys, time\n"
        "print('slow installer', flush=True)\n"
        "time.sleep(60)\n"
    )  # fmt: skip
    script = tmp_path / "go.py"
    script.write_text(
        "import signal, sys\n"
        "from detente.environments import add as room\n"
        "from detente.environments.installer import Installer\n"
        "from tests_recipe import recipe\n"
        # a test run in the background of a shell inherits that Ctrl-C is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"room.choose_installer = lambda: Installer('pip', {copied.create!r}, (sys.executable, {str(slow)!r}), ())\n"
        "try:\n"
        "    room.add(room.plan(recipe), lambda line: None)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    (tmp_path / "tests_recipe.py").write_text(
        f"from detente.environments.recipe import Recipe\nrecipe = {trial!r}\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    child = subprocess.Popen(
        [sys.executable, str(script)], env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "slow installer" in line:
            break
    os.killpg(child.pid, signal.SIGINT)
    _, rest = child.communicate(timeout=30)
    assert child.returncode == 130, rest
    assert state_of("trial", trial.packages) == "unfinished"
    assert python_of("trial") is None
    made(trial)
    assert python_of("trial") is not None


def test_a_disk_that_is_too_small_is_told_before_anything_is_done(trial: Recipe) -> None:
    vast = recipe("small==1.0", size=10**16)
    with pytest.raises(MachineFault, match=r"needs 10000001.0 GB more") as caught:
        add(plan_of(vast), lambda line: None)
    assert "DETENTE_HOME" in caught.value.hint
    assert not folder_of("trial").exists()


def test_a_version_that_no_index_has(trial: Recipe) -> None:
    with pytest.raises(MachineFault, match="No matching distribution") as caught:
        made(recipe("small==9.9"))
    assert "has no such version" in caught.value.hint
    assert python_of("trial") is None
    made(trial)  # and the folder that it left is no obstacle
    assert python_of("trial") is not None


def test_a_package_that_does_not_import(trial: Recipe, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "small", "1.2", {"small.py": "raise RuntimeError('no libfoo.so')\n"})
    with pytest.raises(MachineFault, match=r"do not import: RuntimeError: no libfoo\.so"):
        made(recipe("small==1.2"))
    assert python_of("trial") is None


def test_two_at_once(trial: Recipe, tmp_path: Path) -> None:
    lock = tmp_path / "home" / "data" / "environments" / ".trial.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(MachineFault, match="another process is working on the environment trial"):
            made(trial)
    made(trial)


def test_a_folder_that_cannot_be_written(
    trial: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DETENTE_HOME", str(tmp_path / "file"))
    with pytest.raises(MachineFault, match="cannot be written"):
        made(trial)


def test_our_own_packages_do_not_leak_in(
    trial: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PYTHONPATH with a module of the same name must neither satisfy pip nor the import check."""
    fake = tmp_path / "fake"
    wheel(fake, "small", "1.0", {})
    with zipfile.ZipFile(fake / "small-1.0-py3-none-any.whl") as archive:
        archive.extractall(fake)
    monkeypatch.setenv("PYTHONPATH", str(fake))
    made(trial)
    assert list(folder_of("trial").rglob("small.py"))


def test_names_machines_and_pythons() -> None:
    with pytest.raises(UsageFault, match="did you mean 'torch-xla'"):
        find_recipe("torch-xl")
    xla = RECIPES["torch-xla"]
    with pytest.raises(MachineFault, match="Linux on x86_64, this is Darwin on arm64"):
        check_machine(xla, 11, ("Darwin", "arm64"))
    with pytest.raises(MachineFault, match=r"Python 3.11, 3.12, 3.13, this is 3.14"):
        check_machine(xla, 14, ("Linux", "x86_64"))
    assert all("==" in package for package in xla.packages)


def test_uv_is_taken_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_installer().create[0] == str(tmp_path / "uv")
    monkeypatch.setenv("PATH", "")
    assert choose_installer() is PIP


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_uv_makes_one(trial: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detente.environments.add.choose_installer", choose_installer)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    made(trial)
    record = read_record(folder_of("trial"))
    assert record is not None and record.installer.startswith("uv ") and record.installed["smaller"] == "2.5"


def test_bytes_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x" * 1234)
    (tmp_path / "c").symlink_to("/bin")
    assert 1234 <= folder_bytes(tmp_path) < 1300
