"""Which packages a function of a user's file reaches, read without running it: the parent must lay out rows before any
worker has looked at the model.

Names are followed through the file, and into the files and packages that lie beside it: what the function mentions, and
what that mentions; of a file that is imported whole, everything. It can fail only towards a clear refusal: the worker
checks what the function returned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

Seen = set[tuple[Path, str]]


def reached(file: Path, function: str, root: Path | None = None, seen: Seen | None = None) -> frozenset[str]:
    """Dotted names of the modules that ``function`` of ``file`` (all of it where ``""``) reaches, ``from a import b``
    as ``a.b``. ``root`` is the folder that absolute imports begin at, the file's own; ``seen`` is not read again. What
    cannot be parsed reaches nothing."""
    root, seen = root or file.parent, set() if seen is None else seen
    if (file, function) in seen:
        return frozenset()
    seen.add((file, function))
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError):
        return frozenset()
    bound: dict[str, list[ast.AST]] = {}
    for node in tree.body:
        for name in _binds(node):
            bound.setdefault(name, []).append(node)
    found: set[str] = set()
    known: set[int] = set()
    wanted = list(bound.get(function, ()) if function else tree.body)
    while wanted:
        node = wanted.pop()
        if id(node) in known:
            continue
        known.add(id(node))
        for part in ast.walk(node):
            if isinstance(part, ast.Import):
                for alias in part.names:
                    found |= _whole(alias.name, root, seen)
            elif isinstance(part, ast.ImportFrom):
                found |= _taken(part, file, root, seen)
            elif isinstance(part, ast.Name):
                wanted += bound.get(part.id, ())
    return frozenset(found)


# What people call the arguments that `--batch`, `--seq` and `--layers` set.
DIMENSIONS = {
    "batch_size": "batch",
    "seq": "sequence",
    "seq_len": "sequence",
    "seq_length": "sequence",
    "sequence_length": "sequence",
    "num_layers": "layers",
    "n_layers": "layers",
    "depth": "layers",
}


def arguments_of(file: Path, function: str) -> dict[str, int]:
    """Dimension -> default of the arguments of a function that have a positive whole number as default; an argument
    called otherwise than the dimension is found in DIMENSIONS."""
    for node in ast.parse(file.read_bytes(), str(file)).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            plain = [*node.args.posonlyargs, *node.args.args]
            pairs: list[tuple[ast.arg, ast.expr | None]] = [
                *zip(plain[len(plain) - len(node.args.defaults) :], node.args.defaults, strict=True),
                *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
            ]
            return {
                DIMENSIONS.get(argument.arg, argument.arg): default.value
                for argument, default in pairs
                if isinstance(default, ast.Constant) and type(default.value) is int and default.value > 0
            }
    return {}


def _binds(node: ast.AST) -> Iterator[str]:
    """Names that a statement at the top of a file gives a meaning."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
    elif isinstance(node, ast.If | ast.Try | ast.With):
        for part in ast.iter_child_nodes(node):
            yield from _binds(part)


def _whole(name: str, root: Path, seen: Seen) -> frozenset[str]:
    """What ``import name`` reaches."""
    beside = _file_of(root, name.split("."))
    return frozenset({name}) if beside is None else reached(beside, "", root, seen)


def _taken(node: ast.ImportFrom, file: Path, root: Path, seen: Seen) -> frozenset[str]:
    """What ``from a import b`` reaches: of a file beside this one what is taken from it."""
    start = [file.parent, *file.parents[1:]][node.level - 1] if node.level else root
    parts = node.module.split(".") if node.module else []
    found: frozenset[str] = frozenset()
    for alias in node.names:
        part, whole = _file_of(start, [*parts, alias.name]), _file_of(start, parts)
        if part is not None:
            found |= reached(part, "", root, seen)
        elif whole is not None:
            found |= reached(whole, "" if alias.name == "*" else alias.name, root, seen)
        elif not node.level:
            found |= {".".join([*parts, alias.name])}
    return found


def _file_of(start: Path, parts: list[str]) -> Path | None:
    """The file of a module or a package below ``start``; None where there is none."""
    path = start.joinpath(*parts)
    plain = path.parent / f"{path.name}.py"
    places = [plain, path / "__init__.py"] if parts else [path / "__init__.py"]
    return next((place for place in places if place.is_file()), None)
