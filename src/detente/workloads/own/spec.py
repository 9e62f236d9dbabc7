"""A user's model as a workload. Nothing here imports a framework or runs the user's file: the parent reads this too."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.fault import UsageFault
from detente.records.nearest import did_you_mean
from detente.workloads.overrides import DROPOUT
from detente.workloads.own.reached import arguments_of, reached
from detente.workloads.own.size import OwnSize
from detente.workloads.workload import Size, Workload

HF_BATCH, HF_SEQUENCE = 2, 64
# The size of an ``hf:`` model with two of every kind of layer.
CUT = "cut"
_REPEATS = 2
# The key of ``Workload.definitions`` that a stack of JAX asks for (stacks/catalogue.py), and what defines a user's.
DEFINITIONS = {
    "torch": ("torch", "detente.workloads.own.in_torch"),
    "jax": ("flax", "detente.workloads.own.in_jax"),
}
# Packages whose models are JAX's. Keras has more backends; here it runs on JAX (own/jax/keras_models.py).
_OF_JAX = ("flax", "equinox", "haiku", "keras")
# Packages of JAX that make no model: where nothing of torch is reached, the model is JAX's.
_BESIDE_JAX = ("jax", "optax", "chex", "distrax", "orbax")
# A loader of torch may feed JAX; it makes no model of torch.
_NO_MODEL = ("torch.utils.data",)
# Behind the torch side, which may be an ``hf:`` name with commas of its own.
_SECOND = re.compile(r",(?=[^,]*\.py:[^,:]+$)")


def own_workload(target: str) -> Workload:
    """The workload of ``path/to/file.py:function``, of ``hf:NAME?key=value,...``, or of a pair of two such with a comma
    between: one in torch and one in JAX.

    It has one size, and no closed form of its costs: ``flops`` and ``bytes`` are 0, which reads as "not known"; what is
    known of them is counted in the programs that ran.

    Raises UsageFault when a file is not there, is not Python, or has no such name, and for two of one framework.
    """
    functions = functions_of(target)
    defaults, settings = _dims(functions)
    # Of a pair the torch side's, and what the other has besides.
    dims = {n: v for side in reversed(defaults.values()) for n, v in side.items()}
    size = OwnSize("own", dims, target, functions, settings, defaults)
    cut = [replace(size, name=CUT)] if functions.get("torch", "").startswith("hf:") else []
    return Workload(
        name=target,
        what=f"your own model, {target}",
        sizes={s.name: s for s in (*cut, size)},  # the last is the one that is measured
        definitions=dict(DEFINITIONS[framework] for framework in functions),
        batch=_batch,
        flops=lambda size, region: 0,
        bytes=lambda size, region, parameter, activation: 0,
        products=lambda size: (1024, 1024, 1024),
        proved_at=_proved_at,
        cut=_cut,
        source=target,
    )


def _proved_at(size: Size) -> str:
    """Two of every kind of layer where that can be had, else the size itself; nowhere for a model that one framework
    has alone."""
    assert isinstance(size, OwnSize)
    return (_cut(size) or size.name) if "torch" in size.functions else ""


def _cut(size: Size) -> str:
    """Of a configuration of transformers, and of a function with an argument for the number of layers."""
    assert isinstance(size, OwnSize)
    if "torch" not in size.functions:
        return ""
    plain, comma, more = size.name.partition(",")
    if size.functions["torch"].startswith("hf:"):
        return CUT + comma + more
    if size.dims.get("layers", 0) > _REPEATS:
        kept = [part for part in more.split(",") if part and not part.startswith("layers=")]
        return ",".join((plain, *kept, f"layers={_REPEATS}"))
    return ""


def functions_of(target: str) -> dict[str, str]:
    """Framework -> the function that makes the model in it."""
    sides = _SECOND.split(target)
    found: dict[str, str] = {}
    for side in (part.strip() for part in sides):
        framework = "torch" if side.startswith("hf:") else _framework(side)
        if framework in found:
            raise UsageFault(
                f"{found[framework]} and {side} are both of {_NAMES[framework]}",
                "a pair is one model in torch and the same model in JAX; compare two models of one framework as two "
                "workloads, with a space between",
            )
        found[framework] = side
    return dict(sorted(found.items(), reverse=True))  # torch first: it makes what a pair shares


_NAMES = {"torch": "PyTorch", "jax": "JAX"}


def _framework(side: str) -> str:
    """Which framework a function's model is of, by what it reaches. The worker checks it."""
    file, _, function = side.rpartition(":")
    path = _checked(file, function)
    names = {n for n in reached(path, function) if not n.startswith(_NO_MODEL)}
    tops = {n.partition(".")[0] for n in names}
    of_jax = [p for p in _OF_JAX if p in tops]
    if of_jax and "torch" in tops:
        raise UsageFault(
            f"{side} reaches both torch and {of_jax[0]}: of which its model is cannot be read from the file",
            "make the torch model and the JAX model in functions of their own, in two files or with their imports "
            "inside, and name both: torch_file.py:make,jax_file.py:make",
        )
    beside = "torch" not in tops and not tops.isdisjoint(_BESIDE_JAX)
    return "jax" if of_jax or beside else "torch"


def _batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    assert isinstance(size, OwnSize)
    # Of a pair the torch side draws, and its batches are shared; but no worker of JAX (that plans, say) loads torch.
    alone = "jax" in sys.modules and "torch" not in sys.modules
    if "torch" in size.functions and not (alone and size.is_pair):
        from detente.workloads.own.in_torch import batch
    else:
        from detente.workloads.own.in_jax import batch
    return batch(size, rng)


def _dims(functions: dict[str, str]) -> tuple[dict[str, dict[str, int]], tuple[tuple[str, Any], ...]]:
    """The dimensions of each side, and the settings of an ``hf:`` one."""
    found: dict[str, dict[str, int]] = {}
    settings: tuple[tuple[str, Any], ...] = ()
    for framework, side in functions.items():
        if side.startswith("hf:"):
            dims, settings = _of_hf(side)
        else:
            file, _, function = side.rpartition(":")
            dims = arguments_of(Path(file).expanduser(), function)
        found[framework] = {**dims, DROPOUT: 1}
    return found, settings


def _checked(file: str, function: str) -> Path:
    if not file:
        raise UsageFault(
            f"{function!r} is no model: it names no file and function",
            "a model of your own is path/to/file.py:function, and a pair two with a comma between: a file whose "
            "own name has a comma needs another one",
        )
    path = Path(file).expanduser()
    if not path.is_file():
        raise UsageFault(f"no such file: {file}", "a model of your own is named path/to/file.py:function")
    try:
        names = _top_level_names(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageFault(f"{file} is not Python: {error}", "run it with python to see the error") from None
    if function not in names:
        raise UsageFault(
            f"{file} defines no function {function!r}" + did_you_mean(function, names),
            "name a function that returns (module, loss, batch) or (module, loss, batch, optimizer)",
        )
    return path


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


def _of_hf(target: str) -> tuple[dict[str, int], tuple[tuple[str, Any], ...]]:
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
    return dims, tuple(settings.items())


def _value(text: str) -> Any:
    """``2``, ``0.5``, ``true`` and ``null`` as JSON has them; anything else is a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
