"""Guards: tests of values that do nothing but raise (``if (variance < 0).any(): raise ...``, ``assert mask.all()``).

Where eager torch raises, the program may raise, too: the answer of a guard is checked at every step, whatever it
depends on, and no other control flow hangs on it. What is a guard is read from the source: without it (generated code,
a notebook cell whose text is gone) a test is none.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
from collections.abc import Iterator

CHECK = "a check on values fails: "


def guard(file: str, line: int) -> str | None:
    """What is said where the guard whose test stands at this line fails: the exception that it raises, where that is
    one of Python's own (RuntimeError else), and the guard as one line of source. None where there is none."""
    found = [f"{kind}: {CHECK}{text}" for first, last, text, kind in _guards(file) if first <= line <= last]
    return found[0] if found else None


@functools.cache
def _guards(file: str) -> tuple[tuple[int, int, str, str], ...]:
    """First and last line of every guard's test, the guard, and the name of the exception that it raises."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(_found(tree))


def _found(tree: ast.AST) -> Iterator[tuple[int, int, str, str]]:
    tried = [
        part for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers for part in node.body
    ]
    caught = {
        id(node) for part in tried for node in ast.walk(part)
    }  # what is raised there may lead elsewhere
    for node in ast.walk(tree):
        if id(node) in caught:
            continue
        if isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Raise):
            raising, apart = f"if {ast.unparse(node.test)}: {ast.unparse(node.body[0])}", ast.Or
            kind = _raised(node.body[0].exc)
        elif isinstance(node, ast.Assert):
            raising, apart, kind = ast.unparse(node), ast.And, "AssertionError"
        else:
            continue
        if _each_decides(node.test, apart):
            yield node.test.lineno, node.test.end_lineno or node.test.lineno, raising, kind


def _raised(error: ast.expr | None) -> str:
    """Of ``raise ValueError("...")`` ValueError."""
    named = error.func if isinstance(error, ast.Call) else error
    name = named.id if isinstance(named, ast.Name) else ""
    return name if exception(name) is not None else "RuntimeError"


def exception(name: str) -> type[Exception] | None:
    """One of Python's own exceptions, which takes a text."""
    found = getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    try:
        found("")
    except TypeError:  # UnicodeDecodeError, ExceptionGroup
        return None
    return found


def _each_decides(test: ast.expr, apart: type[ast.boolop]) -> bool:
    """Whether another answer to any one question of the test makes it raise: ``a or b`` for an ``if``, ``a and b`` for
    an assertion, and nothing else that is made of several."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, apart) and all(_each_decides(part, apart) for part in test.values)
    return not any(isinstance(inner, _SEVERAL) or _chain(inner) for inner in ast.walk(test))


_SEVERAL = (ast.BoolOp, ast.IfExp, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)


def _chain(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and len(node.ops) > 1
