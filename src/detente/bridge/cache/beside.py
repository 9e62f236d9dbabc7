"""What a program was found to depend on beside what its name tells of: known only once its code has run, and so kept in
its file, and held against what is there before it is used.

That is what stood in the places of ``live/standing.py`` (a function of a library's that somebody replaced, a registry,
a flag, what code asks for by a string), and the files of the libraries that it ran through: of torch those whose code
ran, as the name tells its version; of any other package all that were imported. A file counts by its size and time:
335 files of transformers are asked in two milliseconds.

How it can fail: a file that is changed and keeps both; a library that reads a file of its own which is no module.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from detente.bridge.cache.describe import Writer
from detente.bridge.cache.lines import Lines, lines_of
from detente.bridge.live.places import OfClass
from detente.bridge.live.python import PLAIN, of_library, of_python, users
from detente.bridge.live.ran import Names
from detente.bridge.live.standing import Row, Standing

# The name of a program tells these's versions.
_VERSIONED = frozenset({"torch", "torchgen", "functorch", "jax", "jaxlib"})
_OWN = str(Path(__file__).parents[1]) + os.sep
_CACHED = type(lru_cache(lambda: None))


@dataclass(frozen=True)
class Beside:
    """``stands`` is by place: the module, whether the user's is there, and what stands there in words. ``files`` are
    those of packages, by package and path in it. ``lines`` are those of the functions that the program is named by.
    ``codes`` are of all functions that were described, and are not kept."""

    stands: Mapping[str, tuple[str, bool, str]]
    files: Mapping[tuple[str, str], str]
    lines: tuple[Lines, ...]
    codes: frozenset[types.CodeType] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, ran: Names, writer: Writer) -> Beside:
        """What is there now. Raises Unknown for what has no description."""
        lines, writer = lines_of(writer.codes), writer.again()
        stands = {row.name: (row.module, row.users, text) for row, text in _said(ran, writer)}
        return cls(stands, dict(_files(ran)), lines, frozenset(writer.codes))

    def fits(self, ran: Names, writer: Writer) -> bool:
        """Whether all of it is still so. The user's modules that the code imports while it runs are imported; a
        library's that is not imported yet is as it was written."""
        roots = {package: _root(package) for package, _ in self.files}
        if any(_stamp(roots[package] + path) != stamp for (package, path), stamp in self.files.items()):
            return False
        try:
            for module in {m for m, mine, _ in self.stands.values() if mine and m not in sys.modules}:
                importlib.import_module(module)
            now = {row.name: (row.module, row.users, text) for row, text in _said(ran, writer.again())}
        except Exception:  # no description, or a module that cannot be imported: a capture says which
            return False
        for name, (module, mine, text) in self.stands.items():
            if name not in now and not mine and module not in sys.modules:
                continue
            if now.get(name) != (module, mine, text):
                return False
        return all(name in self.stands for name, (_, mine, _) in now.items() if mine)


def _said(ran: Names, writer: Writer) -> Iterator[tuple[Row, str]]:
    for row in Standing(ran.places, ran.names).rows:
        if not isinstance(row.table, OfClass) and (id(row.table), row.key) in writer.places:
            continue  # the name tells of it
        mine = row.users and not isinstance(row.value, types.ModuleType)
        yield row, writer.value(row.value) if mine else _words(row.value, writer)


def _words(value: Any, writer: Writer, depth: int = 3) -> str:
    """What of a library's stands somewhere: its name, as its file tells the rest, and what a function of it was made
    with. A function that the bridge has put a listener in front of is that function."""
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    while getattr(value, "__code__", None) is not None and value.__code__.co_filename.startswith(_OWN):
        if not hasattr(value, "__wrapped__"):
            break
        value = value.__wrapped__
    inner = partial(_words, writer=writer, depth=depth - 1)
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        return f"{type(value).__name__} {inner(value.__func__)}"
    if isinstance(value, property):
        return f"property {inner(value.fget)}"
    if isinstance(value, _CACHED):
        return f"cached {inner(value.__wrapped__)}"
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    name = f"{getattr(value, '__module__', '')}.{own}"
    if isinstance(value, types.FunctionType):
        held = value.__closure__ if depth else ()
        made = [writer.value(v) if users(v) else inner(v) for v in _contents(held or ())]
        return f"function {name} {value.__name__}:{value.__code__.co_firstlineno}{made}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(own, str):
        return f"{type(value).__name__} {name}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _contents(cells: Iterable[types.CellType]) -> Iterator[Any]:
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:
            yield "empty"


def _files(ran: Names) -> Iterator[tuple[tuple[str, str], str]]:
    """The files of the libraries that ran, by package and path, with their sizes and times."""
    asked = {place.module for place in ran.places if not of_python(place.module)}
    asked = {name for name in asked if of_library(name)}
    packages = {name.partition(".")[0] for name in asked} - _VERSIONED
    roots = {package: _root(package) for package in {name.partition(".")[0] for name in asked}}
    for name in sorted(asked | {name for name in sys.modules if name.partition(".")[0] in packages}):
        file, package = getattr(sys.modules.get(name), "__file__", None), name.partition(".")[0]
        root = roots[package]
        if isinstance(file, str) and root and file.startswith(root):
            yield (package, file[len(root) :]), _stamp(file)


def _root(package: str) -> str:
    """The folder of a package; empty where there is none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    folder = next(iter(spec.submodule_search_locations or ()), None) or os.path.dirname(spec.origin or "")
    return os.path.join(folder, "") if folder else ""


def _stamp(file: str) -> str:
    try:
        found = os.stat(file)
    except OSError:
        return ""
    return f"{found.st_size}.{found.st_mtime_ns}"
