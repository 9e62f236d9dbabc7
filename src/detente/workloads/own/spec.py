"""A user's model as a workload. Nothing here imports a framework or runs the user's file: the parent reads this too."""

from __future__ import annotations

import ast
import difflib
import json
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.fault import UsageFault
from detente.workloads.own.size import OwnSize
from detente.workloads.workload import Size, Workload

HF_BATCH, HF_SEQUENCE = 2, 64


def own_workload(target: str) -> Workload:
    """The workload of ``path/to/file.py:function`` or ``hf:NAME?key=value,...``.

    It has definitions in torch alone, one size, and no closed form of its costs: ``flops`` and ``bytes`` are 0,
    which reads as "not known", so no floor is drawn.

    Raises UsageFault when the file is not there, is not Python, or has no such name.
    """
    size = _hf_size(target) if target.startswith("hf:") else _file_size(target)
    return Workload(
        name=target,
        what=f"your own model, {target}",
        sizes={size.name: size},
        definitions={"torch": "detente.workloads.own.in_torch"},
        batch=_batch,
        flops=lambda size, region: 0,
        bytes=lambda size, region, parameter, activation: 0,
        products=lambda size: (1024, 1024, 1024),
        source=target,
    )


def _batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    from detente.workloads.own.in_torch import batch

    return batch(size, rng)


def _file_size(target: str) -> OwnSize:
    file, _, function = target.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise UsageFault(f"no such file: {file}", "a model of your own is named path/to/file.py:function")
    try:
        names = _top_level_names(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageFault(f"{file} is not Python: {error}", "run it with python to see the error") from None
    if function not in names:
        near = difflib.get_close_matches(function, names, n=1, cutoff=0.4)
        raise UsageFault(
            f"{file} defines no {function!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            "name a function that returns (module, loss, batch) or (module, loss, batch, optimizer)",
        )
    return OwnSize("own", {}, target=target)


def _top_level_names(tree: ast.Module) -> list[str]:
    """What a file binds at its top level, read without running it."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node in tree.body:
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names += [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        elif isinstance(node, ast.Assign):
            names += [t.id for t in node.targets if isinstance(t, ast.Name)]
    return names


def _hf_size(target: str) -> OwnSize:
    name, _, query = target.removeprefix("hf:").partition("?")
    if not name:
        raise UsageFault("hf: needs a name", "hf:gpt2, hf:path/to/checkpoint, hf:llama?num_hidden_layers=2")
    looks_like_path = name.endswith(".json") or name.startswith((".", "/", "~"))
    if looks_like_path and not Path(name).expanduser().exists():
        raise UsageFault(f"no such file or folder: {name}", "hf: takes a checkpoint folder or a config.json")
    dims = {"batch": HF_BATCH, "sequence": HF_SEQUENCE}
    settings: dict[str, Any] = {}
    for pair in filter(None, query.split(",")):
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageFault(
                f"{pair!r} in {target!r} is not key=value", "hf:llama?num_hidden_layers=2,batch=4"
            )
        value = _value(text)
        if key in dims and not (type(value) is int and value > 0):
            raise UsageFault(f"{key}={text} is not a positive whole number", "hf:gpt2?batch=4,sequence=128")
        (dims if key in dims else settings)[key] = value
    return OwnSize("own", dims, target=target, settings=tuple(settings.items()))


def _value(text: str) -> Any:
    """``2``, ``0.5``, ``true`` and ``null`` as JSON has them; anything else is a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
