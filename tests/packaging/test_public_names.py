"""What a package offers is one list: what resolves, what an editor is told, and what dir() and help() show."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys

import pytest

PACKAGES = ("detente", "detente.bridge")


def told_to_editors(package: str) -> set[str]:
    """The names that are imported for a type checker alone."""
    file = importlib.import_module(package).__file__
    assert file is not None
    with open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    blocks = [n for n in tree.body if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"]
    return {alias.asname or alias.name for block in blocks for n in block.body for alias in n.names}  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_lists_agree_and_every_name_resolves(package: str) -> None:
    module = importlib.import_module(package)
    public = set(module._PUBLIC)
    assert public == told_to_editors(package) == set(module.__all__) - {"__version__"}
    assert public <= set(dir(module))
    assert all(getattr(module, name).__doc__ for name in public)


@pytest.mark.parametrize("package", PACKAGES)
def test_to_look_at_a_package_imports_no_framework(package: str) -> None:
    code = f"import sys, {package} as p; dir(p); p.__all__; print(sorted({{'torch', 'jax'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(package: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=r"no attribute 'compiles'; it has .*compile"):
        _ = module.compiles
