"""The extension that an installation brings along: which file is taken, and what a machine without a compiler has."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from detente.bridge.kernels import build, extension

INCLUDE = Path(jax.ffi.include_dir())
V3 = extension.LEVELS["x86-64-v3"] | {"sse", "fpu"}
V4 = V3 | extension.LEVELS["x86-64-v4"]


@pytest.fixture(scope="module")
def came(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("came") / "shipped"
    made = extension.ship(INCLUDE, folder)
    if not made:
        pytest.skip("an installation brings nothing along for this processor")
    assert sorted(made) == sorted(folder.iterdir())
    return folder


def test_the_best_that_a_processor_has_instructions_for(came: Path) -> None:
    def level(flags: Any) -> str | None:
        found = extension.shipped(INCLUDE, frozenset(flags), came)
        return found and found.name.removeprefix("kernels-")[:9]

    assert level(V4) == "x86-64-v4" and level(V3) == "x86-64-v3"
    assert level(V4 - {"fma"}) is None, "a level has all that is below it"
    assert level(V3 - {"avx2"}) is None and level(()) is None


def test_levels_are_the_compilers(came: Path) -> None:
    """What a compiler may use at a level and does not name here would end a process on another machine."""
    names = {"abm": "LZCNT", "avx": "AVX", "fma": "FMA", "f16c": "F16C", "bmi1": "BMI", "xsave": "XSAVE"}
    for level, flags in extension.LEVELS.items():
        told = [
            set(
                subprocess.run(
                    ["c++", f"-march={march}", "-dM", "-E", "-x", "c++", "/dev/null"],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout.split()
            )
            for march in (level, "x86-64-v3" if level == "x86-64-v4" else "x86-64-v2")
        ]
        new = {n.strip("_") for n in told[0] - told[1] if n.startswith("__") and n.isupper() and len(n) < 16}
        ours = {names.get(flag, flag.upper()) for flag in flags}
        # The last two: that a newer GCC has vectors of these widths at all.
        assert {n for n in new if not n.startswith("FP_FAST")} - {"EVEX256", "EVEX512"} == ours


def test_one_of_other_sources_or_another_interface_is_not_looked_at(
    came: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    changed = tmp_path / "product.cc"
    changed.write_bytes(extension.SOURCES[0].read_bytes() + b"\n// changed\n")
    monkeypatch.setattr(extension, "SOURCES", (changed, *extension.SOURCES[1:]))
    assert extension.shipped(INCLUDE, V4, came) is None
    monkeypatch.undo()
    other = tmp_path / "include" / extension.INTERFACE
    other.parent.mkdir(parents=True)
    other.write_bytes((INCLUDE / extension.INTERFACE).read_bytes() + b"\n")
    assert extension.shipped(tmp_path / "include", V4, came) is None
    assert extension.shipped(INCLUDE, V4, came) is not None


def test_what_an_installation_made_before_is_removed(came: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "kernels-x86-64-v3-of-before.so").write_bytes(b"")
    for file in came.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())  # nothing is compiled again
    assert {f.name for f in extension.ship(INCLUDE, folder)} == {f.name for f in folder.iterdir()}
    assert len(list(folder.iterdir())) == len(extension.LEVELS)


def test_without_headers_nothing_is_made_and_nothing_is_wrong(tmp_path: Path) -> None:
    assert extension.ship(tmp_path, tmp_path / "shipped") == []
    assert not (tmp_path / "shipped").exists()


def test_one_that_cannot_be_loaded_is_built(tmp_path: Path, monkeypatch: Any) -> None:
    broken = tmp_path / "kernels.so"
    broken.write_bytes(b"made where the system's libraries are newer")
    monkeypatch.setattr(build, "_came", lambda: broken)
    assert Path(build._opened()._name) == build._built()


def test_it_has_every_kernel_by_its_name(came: Path) -> None:
    flags = build._flags()
    file = extension.shipped(INCLUDE, flags, came)
    if file is None:
        pytest.skip(f"this processor has not the instructions of {extension.LEVELS.keys()}")
    library = ctypes.CDLL(str(file))
    assert all(hasattr(library, target) for target in (build.TARGET, *build.OURS))


WITHOUT_A_COMPILER = """
import sys, torch, pathlib
import detente
from detente.bridge.kernels import build, extension
extension.FOLDER = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Dropout(0.5))
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(64, 128)
step = detente.compile(model, lambda m, b: m(b).square().mean(), optimizer, example_batch=x, quiet=True, cache=False)
losses = [float(step(x)) for _ in range(3)]
found = build.kernels()
print(found.why or found.library._name, step.programs[0].compiled.calls, found.calls() > 0)
"""


def test_a_machine_without_a_compiler_calls_what_came(came: Path, tmp_path: Path) -> None:
    """Its updates, which are written for one program, stay XLA's."""
    if extension.shipped(INCLUDE, build._flags(), came) is None:
        pytest.skip(f"this processor has not the instructions of {extension.LEVELS.keys()}")
    environment = os.environ | {"CXX": "/no/such/compiler", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_COMPILER, str(came)],
        capture_output=True, text=True, check=False, timeout=300, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    file, calls, some = done.stdout.split()
    assert Path(file).parent == came and calls == "4" and some == "True", "two products, a key and a mask"
