"""Whether a first step was cold: by what the compile wrote where the parent told it to look, and by nothing that a
stack can put there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detente.stacks.catalogue import STACKS
from detente.worker.cold import cache_state, count_files

VARIABLE = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The state behind a first step of a second: ``before`` files were there, ``after`` are; JAX looks at ``looks``."""

    def state(
        before: int = 0,
        after: int = 1,
        empty: int = 0,
        looks: str = "jax",
        stack: str = "jax",
        saved: float = 0.0,
    ) -> str:
        folder = tmp_path / "jax"
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
        for i in range(after):
            (folder / f"entry-{i}").write_bytes(b"compiled")
        for i in range(empty):
            (folder / f"empty-{i}").touch()
        monkeypatch.setenv(VARIABLE, str(folder))
        looked = str(tmp_path / looks) if looks else None
        monkeypatch.setitem(
            sys.modules, "jax", SimpleNamespace(config=SimpleNamespace(jax_compilation_cache_dir=looked))
        )
        opened = SimpleNamespace(
            job=SimpleNamespace(cell=SimpleNamespace(stack=stack), cache=str(tmp_path)),
            environment={"before": {VARIABLE: str(folder)}},
            cache_before=before,
            cache_reads=SimpleNamespace(saved_s=saved),
        )
        return cache_state(opened, 1.0)  # type: ignore[arg-type]

    return state


def test_a_compile_that_wrote_to_an_empty_folder_is_cold(compiled: Any) -> None:
    assert compiled() == "miss"
    assert compiled(before=1) == "hit"
    assert compiled(before=1, after=2) == "unknown"
    # The same small program twice, within the process.
    assert compiled(saved=0.05) == "miss"


@pytest.mark.parametrize(
    "odd",
    [
        {"after": 0, "empty": 1},  # an empty file where compiled steps are counted
        {"looks": "kept"},  # a folder of its own, from session to session
        {"saved": 0.8},  # looked there, and put the setting back
    ],
)
def test_one_that_was_kept_elsewhere_is_not(compiled: Any, odd: dict[str, Any]) -> None:
    assert compiled(**odd) == "unknown"


def test_a_stack_without_a_cache_that_has_one_is_not_known(compiled: Any) -> None:
    assert not STACKS["torch-eager"].caches
    assert compiled(stack="torch-eager", looks="") == "none"
    assert compiled(stack="torch-eager", looks="kept") == "unknown"


def test_a_variable_that_the_parent_set_stays(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = monkeypatch.setenv

    def moved(name: str, value: str) -> None:
        honest(name, value + "-elsewhere")

    monkeypatch.setattr(monkeypatch, "setenv", moved)
    assert compiled() == "unknown"


def test_files_that_hold_nothing_are_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "entry").write_bytes(b"x")
    (tmp_path / "a" / "empty").touch()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert count_files(str(tmp_path)) == 1 and count_files("") == 0
