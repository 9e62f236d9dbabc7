"""Which files a piece of code is made of: its imports, followed without running any of it."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# The folder that holds our package; resolved, because a foreign environment reaches it through a link.
_OURS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sources:
    """``files`` in path order, and the top-level names of the ``modules`` that they import from elsewhere."""

    files: tuple[Path, ...]
    modules: tuple[str, ...]

    def versions(self) -> dict[str, str]:
        """Distribution -> version of those modules that this interpreter has from a distribution."""
        providers = _providers()
        names = {name for module in self.modules for name in providers.get(module, ())}
        return {name: importlib.metadata.version(name) for name in sorted(names)}


def sources_of(modules: Iterable[str] = (), files: Iterable[Path] = ()) -> Sources:
    """The files of these modules of ours and of these of the user's, and of everything that they import: from our
    package, and for a file of the user's from the folder beside it. Imports inside functions count, except in the
    packages on the way to a module, whose functions nobody asked for, and so do not those for type checkers alone. A
    module that is named by a string is not seen, and is for the caller to name. What cannot be parsed has no imports.
    """
    wanted: list[
        tuple[Path, Path]
    ] = []  # a file, and the folder where its absolute imports are looked for first
    for module in modules:
        wanted += _found(module, _OURS)
    for file in files:
        wanted.append((file.resolve(), file.resolve().parent))
    seen: set[Path] = set()
    elsewhere: set[str] = set()
    while wanted:
        file, root = wanted.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in _imports(file, file.stat().st_mtime_ns, whole=file.name != "__init__.py"):
            module = _absolute(name, file, root)
            found = _found(module, root) or _found(module, _OURS, ours=True)
            wanted += found
            if not found:
                elsewhere.add(module.partition(".")[0])
    return Sources(tuple(sorted(seen)), tuple(sorted(elsewhere - {""})))


def _absolute(name: str, file: Path, root: Path) -> str:
    """``..spec`` in ``root/a/b/c.py`` is ``a.spec``."""
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    package = file.parent.relative_to(root).parts if file.is_relative_to(root) else ()
    return ".".join([*package[: len(package) - dots + 1], *filter(None, [name[dots:]])])


def _found(module: str, root: Path, ours: bool = False) -> list[tuple[Path, Path]]:
    """The files that importing ``module`` from ``root`` runs: every package on the way, and itself. Empty when it does
    not lie there; ``a.b.c`` is ``a.b`` where c is a name and no module."""
    parts = module.split(".")
    if ours and parts[0] != "detente":
        return []
    found: list[tuple[Path, Path]] = []
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                found.append((file, root))
                break
        else:
            if not place.is_dir():
                break
    return found


@functools.cache
def _imports(file: Path, changed: int, whole: bool) -> tuple[str, ...]:
    """Dotted names that a file imports, ``from a import b`` as ``a.b``: b may be a module. ``changed`` is its time of
    modification, so that an edited file is read again; ``whole``: also those inside functions."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return ()
    return tuple(dict.fromkeys(_names(tree, whole)))


def _names(node: ast.AST, whole: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = "." * node.level + (node.module or "")
        joint = "" if start.endswith(".") else "."
        yield from (start if alias.name == "*" else f"{start}{joint}{alias.name}" for alias in node.names)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for part in node.orelse:
            yield from _names(part, whole)
    elif whole or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for part in ast.iter_child_nodes(node):
            yield from _names(part, whole)


@functools.cache
def _providers() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())
