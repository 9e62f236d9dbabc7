"""A foreign environment sees our package and nothing else of ours, also where it was installed from a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.fault import MachineFault
from detente.records.job import Job
from detente.session import package_alone as place
from detente.session.spawn import worker_environment


def paths_of(stack: str) -> list[str]:
    job = Job("probe", Cell("gemm", "tiny", stack, CONTRACTS["forward"], "cpu", stack), 0, "", "", "", 1)
    return worker_environment(job, (), None)["PYTHONPATH"].split(os.pathsep)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages as a wheel leaves it: our package, and a torch beside it."""
    folder = tmp_path / "site-packages"
    shutil.copytree(place.PACKAGE, folder / "detente", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "torch.py").write_text("raise SystemExit('the torch of the measuring environment')\n")
    monkeypatch.setenv("DETENTE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(place, "PACKAGE", folder / "detente")
    return folder


def test_a_foreign_worker_imports_ours_from_its_own_interpreter_and_no_neighbour(site: Path) -> None:
    (path,) = paths_of("torch-xla")
    assert Path(path) != site and os.listdir(path) == ["detente"]
    # -S: no site-packages at all, so that what is importable comes from the path alone.
    code = (
        "import detente.records.cell, detente.worker.events, importlib.util as u, sys\n"
        "sys.exit(u.find_spec('torch') is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_it_is_made_once_and_follows_the_package(site: Path, tmp_path: Path) -> None:
    folder = place.package_alone()
    assert place.package_alone() == folder
    (folder / "detente").unlink()
    (folder / "detente").symlink_to(tmp_path)  # left by a package that has moved
    assert (place.package_alone() / "detente").resolve() == site / "detente"
    assert [p.name for p in folder.iterdir()] == ["detente"]


def test_what_others_may_write_is_refused(site: Path) -> None:
    folder = place.package_alone()
    (folder / "numpy.py").write_text("")
    with pytest.raises(MachineFault, match=r"numpy\.py is not ours"):
        place.package_alone()
    (folder / "numpy.py").unlink()
    folder.chmod(0o777)
    with pytest.raises(MachineFault, match="others may write it"):
        place.package_alone()


def test_the_environment_that_measures_keeps_its_own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert paths_of("torch-eager") == [str(place.PACKAGE.parent), "/somewhere"]
