"""A step on disk: weights, buffers, optimizer state, the numbers of ``param_groups`` and the position of the random
numbers, in one safetensors file.

Weights and persistent buffers stand under torch's ``state_dict`` names, so any reader of safetensors finds them;
optimizer state under ``optimizer:PARAMETER:KEY`` with torch's own keys; the rest in the file's metadata, as text. Round
trips are exact in every bit.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from detente.bridge.refusal import refuse
from detente.bridge.state.groups import Groups
from detente.bridge.state.place import from_jax, to_jax
from detente.bridge.state.state import State

SCHEMA = "detente/checkpoint/1"
_OPTIMIZER = "optimizer:"


def save(
    path: str | Path,
    state: State,
    aliases: dict[str, str],
    count: int,
    seed: int,
    groups: Groups,
    numbers: Collection[str] = (),
) -> None:
    """Write ``state``. Tied weights are stored once; ``aliases`` (other name -> stored name) go into the metadata.
    ``numbers`` are names of Python's floats that are inputs of a program: where they stand, Python has them.

    Raises Refused (``checkpoint``) where the file cannot be written; one that was there is then as it was."""
    values, optimizer = state.by_torch_names()
    tensors = {name: from_jax(array) for name, array in values.items() if name not in numbers}
    for name, leaves in optimizer.items():
        tensors |= {f"{_OPTIMIZER}{name}:{key}": from_jax(leaf) for key, leaf in leaves.items()}
    metadata = {
        "schema": SCHEMA,
        "format": "pt",  # readers of torch checkpoints look for this
        "aliases": json.dumps(aliases),
        "step": str(count),
        "seed": str(seed),
        "param_groups": json.dumps(groups),
    }
    try:
        with _whole(path) as beside:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside, metadata)
    except (OSError, SafetensorError) as error:
        folder = Path(path).absolute().parent
        why = str(error) if folder.is_dir() else f"there is no folder {folder}"
        hint = "make its folder first, and see that there is room; a file that was there is as it was"
        raise refuse("checkpoint", f"{path} was not written: {why}", hint=hint) from error


@contextmanager
def _whole(path: str | Path) -> Iterator[Path]:
    """A file to write to that takes the name ``path`` when it is whole and on the disk: who is ended halfway has the
    checkpoint of before. A link stays a link, and a file that others may not read stays one."""
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        yield beside
        if target.exists():
            shutil.copymode(target, beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def load(
    path: str | Path, like: State, numbers: Collection[str] = ()
) -> tuple[State, int, int, Groups | None]:
    """``(state, count, seed, groups)`` from a file that ``save`` wrote; ``groups`` is None where it was an earlier
    version's, which kept none. ``like`` says which tensors there must be; ``numbers`` among them stay what they are.

    Raises Refused (``checkpoint``) for a file that ``save`` did not write, or not to its end, and naming what is
    missing, unexpected, or of another shape or dtype; FileNotFoundError where there is none.
    """
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except SafetensorError as error:
        hint = "step.load reads what step.save wrote; what torch.save wrote is for model.load_state_dict"
        what = f"{path} is no safetensors file, or was cut short ({error})"
        raise refuse("checkpoint", what, hint=hint) from error
    if metadata.get("schema") != SCHEMA:
        raise refuse(
            "checkpoint",
            f"{path} is not a {SCHEMA} file (schema {metadata.get('schema')!r})",
            hint="step.load reads what step.save wrote; weights alone go in by step.restart, or model.load_state_dict",
        )
    values, optimizer = like.by_torch_names()
    expected: dict[str, Any] = {name: array for name, array in values.items() if name not in numbers}
    for name, leaves in optimizer.items():
        expected |= {f"{_OPTIMIZER}{name}:{key}": leaf for key, leaf in leaves.items()}
    _compare(path, stored, expected)
    arrays = {name: to_jax(stored[name]) for name in expected}
    fresh = {
        name: {key: arrays[f"{_OPTIMIZER}{name}:{key}"] for key in leaves}
        for name, leaves in optimizer.items()
    }
    state = State({name: arrays.get(name, array) for name, array in values.items()}, fresh)
    state.arrange(like.stacks)
    groups = json.loads(metadata["param_groups"]) if "param_groups" in metadata else None
    return state, int(metadata["step"]), int(metadata["seed"]), groups


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
