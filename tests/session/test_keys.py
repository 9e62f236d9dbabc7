"""What is cached goes by everything that it depends on, and by nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detente.environments.place import EnvironmentRecord, folder_of, interpreter, write_record
from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.session import proofs
from detente.session.prepared import prepared_folder, sources_of_making
from detente.session.proofs import proof_file
from detente.session.sources import sources_of

PACKAGE = Path(proofs.__file__).parent.parent


def cell(workload: str, stack: str = "torch-eager") -> Cell:
    return Cell(workload, "tiny", stack, CONTRACTS["train-step"], "cpu", stack)


def names(workload: str) -> set[str]:
    return {
        str(f.relative_to(PACKAGE)) for f in sources_of_making(workload).files if f.is_relative_to(PACKAGE)
    }


# -- prepared weights ----------------------------------------------------------------------------------------


def test_a_workload_is_made_of_its_own_files_and_of_what_the_job_imports() -> None:
    gpt2, ffn = names("gpt2"), names("ffn")
    assert {"workloads/gpt2/spec.py", "workloads/gpt2/in_torch.py", "workloads/traffic.py"} <= gpt2
    # Through the job: the stack that makes them, the reference, and the sketches that the reference imports.
    assert {
        "worker/jobs/prepare.py",
        "stacks/torch_eager.py",
        "worker/reference.py",
        "worker/sketch.py",
    } <= gpt2
    assert not {n for n in gpt2 if n.startswith(("workloads/ffn", "judge", "session", "report", "bridge"))}
    assert "workloads/gpt2/in_flax.py" not in gpt2, "what another framework runs makes no weights"
    assert gpt2 ^ ffn == {
        *(f"workloads/{w}/{f}.py" for w in ("gpt2", "ffn") for f in ("__init__", "spec", "in_torch")),
        # Of the parts that definitions share, those that this one imports.
        *(f"workloads/torch_parts/{f}.py" for f in ("__init__", "at_least_float32", "losses")),
    }


@pytest.mark.parametrize(
    ("edited", "moved"),
    [
        ("workloads/gpt2/in_torch.py", ("gpt2",)),
        ("workloads/ffn/spec.py", ("ffn",)),
        ("workloads/mha/in_flax.py", ()),
        ("worker/sketch.py", ("gpt2", "ffn")),
    ],
)
def test_editing_one_file_moves_only_the_workloads_that_it_makes(
    tmp_path: Path, edited: str, moved: tuple[str, ...]
) -> None:
    """In a copy of the package, before and after an edit."""
    package = tmp_path / "detente"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))

    def folders() -> list[str]:
        code = (
            "from detente.session.prepared import prepared_folder\n"
            "from detente.records.cell import Cell\n"
            "from detente.records.contract import CONTRACTS\n"
            "for w in ('gpt2', 'ffn'):\n"
            "    print(prepared_folder(Cell(w, 'tiny', 'jax', CONTRACTS['forward'], 'cpu', 'x'), 1, 4).name)"
        )
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        told = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        return told.stdout.split()

    before = folders()
    with (package / edited).open("a") as file:
        file.write("\n# edited\n")
    after = folders()
    assert [w for w, a, b in zip(("gpt2", "ffn"), before, after, strict=True) if a != b] == list(moved)


def test_a_model_of_the_users_is_made_of_what_it_imports_beside_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("from layers import block\n\ndef build(): ...\n")
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers/__init__.py").write_text("from .block import block\n")
    (tmp_path / "layers/block.py").write_text("block = 1\n")
    (tmp_path / "other.py").write_text("unused = 1\n")
    model = f"{tmp_path / 'model.py'}:build"
    first = prepared_folder(cell(model), 1, 4)
    (tmp_path / "other.py").write_text("unused = 2\n")
    assert prepared_folder(cell(model), 1, 4) == first
    (tmp_path / "layers/block.py").write_text("block = 22\n")
    assert prepared_folder(cell(model), 1, 4) != first


def test_imports_that_nothing_runs_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b\nelse:\n    import c\n"
        "def later():\n    import d\n"
    )
    for name in "bcd":
        (tmp_path / f"{name}.py").write_text("")
    assert [f.name for f in sources_of(files=[tmp_path / "a.py"]).files] == ["a.py", "c.py", "d.py"]


def test_versions_are_those_of_what_is_imported() -> None:
    assert set(sources_of_making("gemm").versions()) == {"torch", "numpy"}
    assert set(sources_of_making("gpt2").versions()) == {"torch", "numpy", "transformers"}


# -- proofs --------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real environment for the stack torch-xla, with nothing in it; its site-packages."""
    monkeypatch.setenv("DETENTE_HOME", str(tmp_path / "home"))
    folder = folder_of("torch-xla")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    write_record(folder, EnvironmentRecord("torch-xla", 0.0, "3", "pip", ()))
    assert interpreter(folder).exists()
    (site,) = folder.glob("lib/python*/site-packages")
    return site


def install(site: Path, name: str, version: str) -> None:
    for old in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(old)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_an_upgrade_of_any_distribution_makes_another_proof(foreign: Path) -> None:
    """A list of ours would not know what a stack of the user's computes with. In one process, as in a notebook."""
    found = []
    for name, version in (
        ("tensorflow", "2.20"),
        ("tensorflow", "2.21"),
        ("unheard_of", "1"),
        ("keras", "3"),
    ):
        install(foreign, name, version)
        found.append(proof_file(cell("gemm", "torch-xla")))
    assert len(set(found)) == 4
    assert proof_file(cell("gemm", "torch-xla")) == found[-1], "the same environment, the same proof"


def test_a_foreign_environment_does_not_see_ours(foreign: Path) -> None:
    """What is installed where detente runs does not make a foreign stack's proof anew."""
    install(foreign, "tensorflow", "2.20")
    before = proof_file(cell("gemm", "torch-xla"))
    assert proof_file(cell("gemm")) != before
    install(foreign, "tensorflow", "2.20")
    assert proof_file(cell("gemm", "torch-xla")) == before


def test_another_processor_makes_another_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one thing here that a test cannot have: the rest of the fact is ``machine()``."""
    here = proof_file(cell("gemm"))
    found = {**proofs.machine(), "processor": "another model"}
    monkeypatch.setattr(proofs, "machine", lambda: found)
    assert proof_file(cell("gemm")) != here


def test_what_a_stack_of_the_users_imports_beside_it_is_part_of_its_proof(tmp_path: Path) -> None:
    stack = tmp_path / "mine.py"
    stack.write_text(
        "import importlib\n"
        "from detente.stacks.torch_eager import TorchEager\n"
        "def later():\n    import kernels\n"
        "class Mine(TorchEager): ...\n"
    )
    (tmp_path / "kernels.py").write_text("fast = 1\n")
    first = proof_file(cell("gemm", f"{stack}:Mine"))
    (tmp_path / "kernels.py").write_text("fast = 22\n")
    assert proof_file(cell("gemm", f"{stack}:Mine")) != first


# -- what a row is called ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jax", "torch-eager"])
def test_a_class_that_is_called_as_a_stack_of_ours_has_its_file_in_its_label(
    name: str, tmp_path: Path
) -> None:
    from detente.session.layout import lay_out
    from detente.session.request import Request

    kind = name.replace("-", "_")
    file = tmp_path / "mine.py"
    file.write_text(f"from detente.stacks.jax_jit import JaxJit\n\n\nclass {kind}(JaxJit):\n    pass\n")
    found = lay_out(Request(("ffn",), (f"{file}:{kind}", name), "tiny", aa=False)).cells
    assert [c.label for c in found] == (["mine:jax", "jax"] if name == "jax" else [kind, name])
    assert len({c.key for c in found}) == 2
