"""Guards: tests of values that do nothing but raise (``if (variance < 0).any(): raise ...``, ``assert mask.all()``).

Where eager torch raises, the program may raise, too: the answer of a guard is checked at every step, whatever it
depends on, and no other control flow hangs on it. What is a guard is read from the source: without it (generated code,
a notebook cell whose text is gone) a test is none.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator


def guard(file: str, line: int) -> str | None:
    """The guard whose test stands at this line, as one line of source; None where there is none."""
    found = [text for first, last, text in _guards(file) if first <= line <= last]
    return found[0] if found else None


@functools.cache
def _guards(file: str) -> tuple[tuple[int, int, str], ...]:
    """First and last line of every guard's test, and the guard."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(_found(tree))


def _found(tree: ast.AST) -> Iterator[tuple[int, int, str]]:
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
        elif isinstance(node, ast.Assert):
            raising, apart = ast.unparse(node), ast.And
        else:
            continue
        if _each_decides(node.test, apart):
            yield node.test.lineno, node.test.end_lineno or node.test.lineno, raising


def _each_decides(test: ast.expr, apart: type[ast.boolop]) -> bool:
    """Whether another answer to any one question of the test makes it raise: ``a or b`` for an ``if``, ``a and b`` for
    an assertion, and nothing else that is made of several."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, apart) and all(_each_decides(part, apart) for part in test.values)
    return not any(isinstance(inner, _SEVERAL) or _chain(inner) for inner in ast.walk(test))


_SEVERAL = (ast.BoolOp, ast.IfExp, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)


def _chain(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and len(node.ops) > 1
