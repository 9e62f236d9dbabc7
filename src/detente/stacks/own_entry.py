"""The entry of a user's own stack, learned without running the user's file in this process.

A stack's file is a stranger's code to the parent: it may print into the JSON, call ``sys.exit`` or never come back. So
the parent reads it: what a class says of itself, or which of our stacks it varies, stands in the source. Where it does
not (a class that is made by a function, a base from another file of the user's), a short-lived process loads it and
answers, and its time is limited.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from detente.records.codec import SchemaError, from_json, to_json
from detente.records.fault import UsageFault
from detente.stacks.catalogue import STACKS, StackEntry, load_class

# The parent tells its workers what it learned, so that they need not ask again.
VARIABLE = "DETENTE_OWN_ENTRY"
# Importing a file of the user's, its other files and their frameworks.
ASK_S = 60.0
_HINT = "give it an attribute `entry`, a detente.stacks.catalogue.StackEntry (docs/add-a-stack.md)"


def own_entry(name: str) -> StackEntry:
    """The entry of ``path/to/file.py:ClassName``, named as the user named it. Raises UsageFault."""
    told = os.environ.get(VARIABLE)
    if told:
        known = from_json(StackEntry, json.loads(told))
        if known.name == name:
            return known
    file, _, cls = name.rpartition(":")
    path = Path(file)
    try:
        data = path.read_bytes()
    except OSError:
        raise UsageFault(
            f"no such file: {file}", "a stack of your own is named path/to/file.py:ClassName"
        ) from None
    try:
        found = _Read(ast.parse(data, str(path))).entry_of(cls)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UsageFault(f"{file} is not Python: {error}", "run it with python to see the error") from None
    if found is None:
        raise UsageFault(f"the class of {name} has no attribute `entry`", _HINT)
    entry = _ask(str(path.resolve()), cls, file, hash(data)) if isinstance(found, Unclear) else found
    # Whether a class of the user's gives programs away, only it knows.
    return replace(
        entry,
        name=name,
        target=name,
        default=False,
        programs=True,
        foreign_program=entry.definition == "flax",
    )


def worker_variable(entry: StackEntry) -> dict[str, str]:
    """What a worker of this stack starts with; nothing for the stacks of the table."""
    return {VARIABLE: json.dumps(to_json(entry))} if ".py:" in entry.target else {}


# -- reading ----------------------------------------------------------------------------------------------------------


class Unclear:
    """The source does not say it."""


_UNCLEAR = Unclear()


class _Read:
    """A file's top level: its classes, its imports and its constants."""

    def __init__(self, tree: ast.Module) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.values: dict[str, ast.expr] = {}
        self.imported: dict[str, str] = {}
        bound: list[str] = []
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
                bound.append(node.name)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module}:{alias.name}"
                    bound.append(alias.asname or alias.name)
            elif (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                self.values[node.targets[0].id] = node.value
                bound.append(node.targets[0].id)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self.values[node.target.id] = node.value
                bound.append(node.target.id)
            elif not isinstance(node, ast.Import | ast.FunctionDef | ast.Expr):
                # A loop or a condition at the top level may bind anything.
                bound += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)] * 2
        self.ambiguous = {n for n in bound if bound.count(n) > 1}

    def entry_of(self, cls: str, seen: tuple[str, ...] = ()) -> StackEntry | Unclear | None:
        """The entry of a class of this file; None when all of its bases are known and none has one."""
        node = self.classes.get(cls)
        if node is None or cls in self.ambiguous or node.decorator_list or node.keywords or cls in seen:
            return _UNCLEAR
        for line in node.body:
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == "entry" for t in targets):
                return self._value(getattr(line, "value", None))
            if not isinstance(
                line, ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.Expr | ast.Pass | ast.ClassDef
            ):
                return _UNCLEAR
        for base in node.bases:
            name = base.id if isinstance(base, ast.Name) else ""
            if name in self.classes:
                found = self.entry_of(name, (*seen, cls))
            elif name in self.imported and name not in self.ambiguous:
                found = _OURS.get(self.imported[name], _UNCLEAR)
            else:
                found = None if name in ("object", "Protocol") else _UNCLEAR
            if found is not None:
                return found
        return None

    def _value(self, node: ast.expr | None) -> StackEntry | Unclear:
        try:
            found = self._evaluate(node)
        except (ValueError, TypeError, KeyError, RecursionError):
            return _UNCLEAR
        return found if isinstance(found, StackEntry) else _UNCLEAR

    def _evaluate(self, node: Any, depth: int = 0) -> Any:
        """Literals, names of them, and three calls that make an entry. Anything else raises ValueError."""
        if depth > 20:
            raise ValueError
        go = lambda inner: self._evaluate(inner, depth + 1)  # noqa: E731
        if isinstance(node, ast.Name) and node.id in self.values and node.id not in self.ambiguous:
            return go(self.values[node.id])
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(map(go, node.elts))
        if isinstance(node, ast.Dict):
            return {go(k): go(v) for k, v in zip(node.keys, node.values, strict=True)}
        if isinstance(node, ast.Subscript) and self._is(node.value, "detente.stacks.catalogue:STACKS"):
            return STACKS[go(node.slice)]
        if isinstance(node, ast.Call):
            arguments = [go(a) for a in node.args]
            keywords = {k.arg: go(k.value) for k in node.keywords if k.arg}
            if len(keywords) < len(node.keywords):
                raise ValueError
            if self._is(node.func, "detente.stacks.catalogue:StackEntry"):
                return _checked(StackEntry(*arguments, **keywords))
            if self._is(node.func, "dataclasses:replace") and isinstance(arguments[0], StackEntry):
                return _checked(replace(arguments[0], **keywords))
            raise ValueError
        return ast.literal_eval(node)

    def _is(self, node: ast.expr, target: str) -> bool:
        return isinstance(node, ast.Name) and self.imported.get(node.id) == target


# What the current folder would otherwise be needed for.
_ABOVE = str(Path(__file__).resolve().parents[2])
_OURS: Mapping[str, StackEntry] = {e.target: e for e in STACKS.values()}


def _checked(entry: StackEntry) -> StackEntry:
    return from_json(StackEntry, to_json(entry))


# -- asking -----------------------------------------------------------------------------------------------------------


@cache
def _ask(file: str, cls: str, shown: str, content: int) -> StackEntry:
    """What a process of its own says of the class. ``content`` is part of the cache's key: the file may be edited."""
    read, write = os.pipe()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "detente.stacks.own_entry", file, cls, str(write)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, (_ABOVE, os.environ.get("PYTHONPATH")))),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        try:
            code: int | None = child.wait(ASK_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Also what it left running, which would hold the pipe open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        os.set_blocking(read, False)
        with os.fdopen(read, "rb") as answer:
            said = answer.read(1 << 20) or b""
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4000))
        tail = [x for x in output.read().decode(errors="replace").splitlines() if x.strip()]
    if code is None:
        raise UsageFault(
            f"{shown} did not come back within {ASK_S:g} s when it was loaded",
            "a stack's file may do nothing slow at its top level",
        )
    try:
        found = json.loads(said)
        if "fault" in found:
            raise UsageFault(*map(str, found["fault"]))
        return from_json(StackEntry, found["entry"])
    except (ValueError, KeyError, TypeError, SchemaError):
        why = f": {tail[-1]}" if tail else ""
        raise UsageFault(
            f"{shown} ended with exit code {code} when it was loaded{why}",
            "run it with python to see the error",
        ) from None


def _answer(file: str, cls: str, fd: int) -> None:
    """In the process of its own: load the class, and write its entry or what is wrong with it."""
    try:
        found = load_class(f"{file}:{cls}")
        entry = getattr(found, "entry", None)
        if not isinstance(entry, StackEntry):
            names = [f"{c.__module__}:{c.__qualname__}" for c in found.__mro__]
            entry = next((_OURS[n] for n in names if n in _OURS), None)
        told: dict[str, Any] = (
            {"entry": to_json(entry)}
            if entry is not None
            else {"fault": [f"the class {cls} of {file} has no attribute `entry`", _HINT]}
        )
    except UsageFault as fault:
        told = {"fault": [fault.message, fault.hint]}
    os.write(fd, json.dumps(told).encode())


if __name__ == "__main__":
    _answer(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    os._exit(0)
