"""Which packages a function of a user's file reaches, read without running it: the parent must lay out rows before any
worker has looked at the model.

Names are followed through the file: what the function mentions, and what that mentions. A package that another file
beside it imports counts as reached when anything of that file is. It can fail only towards a clear refusal: the worker
checks what the function returned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def reached(file: Path, function: str, above: frozenset[tuple[Path, str]] = frozenset()) -> frozenset[str]:
    """Dotted names of the modules that ``function`` of ``file`` reaches, ``from a import b`` as ``a.b``. ``above`` are
    the functions on the way there. What cannot be parsed reaches nothing."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError):
        return frozenset()
    bound: dict[str, list[ast.AST]] = {}
    for node in tree.body:
        for name in _binds(node):
            bound.setdefault(name, []).append(node)
    above |= {(file, function)}
    found: set[str] = set()
    seen: set[int] = set()
    wanted = list(bound.get(function, ()) if function else tree.body)
    while wanted:
        node = wanted.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for part in ast.walk(node):
            if isinstance(part, ast.Import | ast.ImportFrom):
                found |= set(_imported(part, file.parent, above))
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


def _imported(
    node: ast.Import | ast.ImportFrom, folder: Path, above: frozenset[tuple[Path, str]]
) -> Iterator[str]:
    """What an import reaches: a package, or of a file beside this one what is taken from it (all of it for a plain
    import)."""
    start = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        whole = f"{start}.{alias.name}" if start else alias.name
        beside = folder / f"{whole.partition('.')[0]}.py"
        taken = alias.name if start and "." not in start and alias.name != "*" else ""
        if not beside.is_file():
            yield whole
        elif (beside, taken) not in above:
            yield from reached(beside, taken, above)
