"""The wheel: built, installed into an environment that holds what it declares and nothing else, and used there."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SESSION = ROOT / "docs/results/demo/session.jsonl"
Used = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return _built(_copy(folder / "source"), folder)


def _copy(folder: Path, without: str = "") -> Path:
    """What a wheel is made of: making one compiles, and others load what lies in the checkout."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", without))
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, folder)
    return folder


def _built(source: Path, folder: Path, **variables: str) -> Path:
    where = ("--wheel-dir", str(folder), str(source))
    _pip("wheel", "--quiet", "--no-build-isolation", "--no-deps", *where, env=os.environ | variables)
    (built,) = folder.glob("detente-*.whl")
    return built


def _pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _installed(wheel: Path, folder: Path, extra: str) -> Used:
    """An environment with the wheel, and links to the distributions that it asks for with this extra."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin/python"
    _pip("--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    (site,) = folder.glob("lib/python*/site-packages")
    for name in sorted(_asked(site, extra)):
        found = metadata.distribution(name)
        tops = {f.parts[0] for f in found.files or () if f.parts[0] not in ("..", "__pycache__")}
        assert tops, f"{name} says of no file that it is its own"
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))).resolve())

    def run(*arguments: str, command: str = "detente") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(folder / "bin" / command), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "DETENTE_HOME": str(folder / "home"),
                "DETENTE_LOCK": str(folder / "lock"),
            },
        )

    return run


def _asked(site: Path, extra: str) -> set[str]:
    """Names of everything that the installed wheel requires, and of what that requires."""
    (own,) = metadata.distributions(path=[str(site)], name="detente")
    found: set[str] = set()
    wanted = [(r, extra) for r in own.requires or ()]
    while wanted:
        text, asked = wanted.pop()
        requirement = Requirement(text)
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": asked})):
            continue
        found.add(name)
        wanted += [(r, e) for r in metadata.requires(name) or () for e in ("", *requirement.extras)]
    return found


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Used:
    """What measures: click, numpy, psutil."""
    return _installed(wheel, tmp_path_factory.mktemp("core") / "env", "")


@pytest.fixture(scope="module")
def judging(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Used:
    """What judges and tells, and no framework."""
    return _installed(wheel, tmp_path_factory.mktemp("judge") / "env", "judge")


def test_it_holds_what_is_read_at_run_time(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/detente").rglob("*") if p.is_file()}
    wanted = {f for f in files if "__pycache__" not in f and not f.endswith((".pyc", ".pyo"))}
    assert {"detente/py.typed", "detente/report/templates/page.html.j2"} <= wanted <= names
    strangers = {n for n in names if not n.startswith("detente") or "tests" in n.split("/")}
    assert strangers == set()


def test_it_brings_the_bridges_kernels_where_they_can_be_compiled_and_says_for_what(
    wheel: Path, tmp_path: Path
) -> None:
    include = Path(sysconfig.get_path("platlib")) / "jaxlib/include"
    if platform.machine() != "x86_64" or not include.is_dir() or not shutil.which("c++"):
        pytest.skip("nothing is compiled here: another processor, no JAX or no compiler")
    kernels = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".so")]
    assert len(kernels) == 2 and wheel.name.endswith("-py3-none-linux_x86_64.whl")
    assert _metadata(wheel)["Root-Is-Purelib"] == "false"
    # Without a compiler it is one of Python alone, and no error.
    plain = _built(_copy(tmp_path / "source", "shipped"), tmp_path, CXX="/no/such/compiler")
    assert plain.name.endswith("-py3-none-any.whl")
    assert not [n for n in zipfile.ZipFile(plain).namelist() if n.endswith(".so")]
    assert _metadata(plain)["Root-Is-Purelib"] == "true"


def _metadata(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as held:
        (name,) = (n for n in held.namelist() if n.endswith(".dist-info/WHEEL"))
        lines = held.read(name).decode().splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def test_the_changelog_has_the_version(wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_core_alone_starts_explains_and_plans(core: Used) -> None:
    assert re.fullmatch(r"detente, version \d+\.\d+\.\d+\n", core("--version").stdout)
    for arguments, code, says in (
        (("rule", "P1"), 0, "clock-stops-early"),
        (("workloads",), 0, "gpt2"),
        (("compare", "gemm", "--size", "tiny", "--dry-run"), 3, "skipped: not installed"),
    ):
        done = core(*arguments)
        assert done.returncode == code and says in done.stdout, done.stdout + done.stderr


def test_it_is_the_wheel_that_runs(core: Used) -> None:
    done = core("-c", "import detente; print(detente.__file__)", command="python")
    assert "site-packages" in done.stdout and str(ROOT) not in done.stdout


def test_a_stored_session_is_told_where_no_framework_is(judging: Used, tmp_path: Path) -> None:
    done = judging("report", str(SESSION))
    assert done.returncode == 0 and "torch-eager" in done.stdout, done.stderr
    page = tmp_path / "report.html"
    done = judging("report", str(SESSION), "--html", str(page))
    assert done.returncode == 0 and page.stat().st_size > 20_000, done.stderr
    done = judging("-c", "import torch", command="python")
    assert "No module named 'torch'" in done.stderr
