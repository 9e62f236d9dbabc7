"""A step on disk: weights, buffers, optimizer state and the position of the random numbers, in one safetensors file.

Weights and persistent buffers stand under torch's ``state_dict`` names, so any reader of safetensors finds them;
optimizer state under ``optimizer:PARAMETER:KEY`` with torch's own keys. Round trips are exact in every bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from detente.bridge.refusal import refuse
from detente.bridge.state.place import from_jax, to_jax
from detente.bridge.state.state import State

SCHEMA = "detente/checkpoint/1"
_OPTIMIZER = "optimizer:"


def save(path: str | Path, state: State, aliases: dict[str, str], count: int, seed: int) -> None:
    """Write ``state``. Tied weights are stored once; ``aliases`` (other name -> stored name) go into the metadata."""
    values, optimizer = state.by_torch_names()
    tensors = {name: from_jax(array) for name, array in values.items()}
    for name, leaves in optimizer.items():
        tensors |= {f"{_OPTIMIZER}{name}:{key}": from_jax(leaf) for key, leaf in leaves.items()}
    metadata = {
        "schema": SCHEMA,
        "format": "pt",  # readers of torch checkpoints look for this
        "aliases": json.dumps(aliases),
        "step": str(count),
        "seed": str(seed),
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(path), metadata)


def load(path: str | Path, like: State) -> tuple[State, int, int]:
    """``(state, count, seed)`` from a file that ``save`` wrote. ``like`` says which tensors there must be.

    Raises Refused (``checkpoint``) naming what is missing, unexpected, or of another shape or dtype.
    """
    with safe_open(str(path), "pt") as file:
        metadata = file.metadata() or {}
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    if metadata.get("schema") != SCHEMA:
        raise refuse("checkpoint", f"{path} is not a {SCHEMA} file (schema {metadata.get('schema')!r})")
    values, optimizer = like.by_torch_names()
    expected: dict[str, Any] = dict(values)
    for name, leaves in optimizer.items():
        expected |= {f"{_OPTIMIZER}{name}:{key}": leaf for key, leaf in leaves.items()}
    _compare(path, stored, expected)
    arrays = {name: to_jax(stored[name]) for name in expected}
    fresh = {
        name: {key: arrays[f"{_OPTIMIZER}{name}:{key}"] for key in leaves}
        for name, leaves in optimizer.items()
    }
    state = State({name: arrays[name] for name in values}, fresh)
    state.arrange(like.stacks)
    return state, int(metadata["step"]), int(metadata["seed"])


def _compare(path: str | Path, stored: dict[str, torch.Tensor], expected: dict[str, Any]) -> None:
    absent, extra = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    other = [
        f"{name} is {stored[name].dtype} {list(stored[name].shape)}, here {array.dtype} {list(array.shape)}"
        for name, array in expected.items()
        if name in stored
        and (
            tuple(stored[name].shape) != tuple(array.shape)
            or str(stored[name].dtype) != f"torch.{array.dtype}"
        )
    ]
    what = [f"missing: {', '.join(absent[:5])}"] if absent else []
    what += [f"unexpected: {', '.join(extra[:5])}"] if extra else []
    what += other[:5]
    if what:
        raise refuse("checkpoint", f"{path} does not fit this step ({'; '.join(what)})")
