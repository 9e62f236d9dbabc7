"""``detente stacks``, as a user types it. Making the real environment is gigabytes: docs/environments.md."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from detente.stacks.catalogue import STACKS

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_list_names_every_stack_and_the_command_that_adds_it(detente: Run, tmp_path: Path) -> None:
    found = detente("stacks", "--format", "json", DETENTE_HOME=str(tmp_path))
    assert found.returncode == 0, found.stderr
    listed = json.loads(found.stdout)
    assert listed["schema"] == "detente/stacks/1"
    rows = {row["stack"]: row for row in listed["stacks"]}
    assert list(rows) == list(STACKS)
    assert rows["torch-xla"]["state"] == "not installed"
    assert "detente stacks add torch-xla" in rows["torch-xla"]["reason"]
    assert rows["torch-xla"]["python"] is None
    text = detente("stacks", DETENTE_HOME=str(tmp_path)).stdout
    assert "`detente stacks add torch-xla` makes its environment" in text
    beside = {one["environment"]: one["record"] for one in listed["environments"]}
    assert beside == {"jax-0.7.1": None, "chips": None}
    assert all(f"absent: `detente stacks add {name}`" in text for name in beside)
    assert detente("stacks", "list", "--format", "md").stdout.startswith("| stack | what |")


def test_nothing_is_downloaded_without_being_told(detente: Run, tmp_path: Path) -> None:
    found = detente("stacks", "add", "torch-xla-compile", DETENTE_HOME=str(tmp_path))
    assert found.returncode == 2
    for word in ("7.7 GB on disk", "3.6 GB to download", "torch_xla==2.9.0", str(tmp_path), "--yes"):
        assert word in found.stderr, word
    assert not (tmp_path / "data").exists()


def test_a_disk_that_is_too_small(detente: Run, tmp_path: Path) -> None:
    """The recipe is made larger than any disk; everything else is the real command."""
    (tmp_path / "sitecustomize.py").write_text(
        "import dataclasses\n"
        "from detente.environments import recipe\n"
        "big = {n: dataclasses.replace(r, size=10**16) for n, r in recipe.RECIPES.items()}\n"
        "recipe.RECIPES.update(big)\n"
    )

    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    found = detente(
        "stacks", "add", "torch-xla", "--yes", DETENTE_HOME=str(tmp_path / "home"), PYTHONPATH=path
    )
    assert found.returncode == 3, found.stderr
    assert "needs 10000001.0 GB more" in found.stderr and "DETENTE_HOME" in found.stderr


def test_names(detente: Run, tmp_path: Path) -> None:
    wrong = detente("stacks", "add", "torch-xl")
    assert wrong.returncode == 2 and "did you mean 'torch-xla'?" in wrong.stderr
    own = detente("stacks", "add", "jax")
    assert own.returncode == 2 and "there is nothing to add" in own.stderr
    gone = detente("stacks", "remove", "torch-xla", "--yes", DETENTE_HOME=str(tmp_path))
    assert gone.returncode == 0 and "nothing to remove" in gone.stdout
