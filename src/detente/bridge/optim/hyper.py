"""The numbers of ``param_groups``: which of them may change from step to step, and how they enter a program.

A Python float (``lr``, ``betas``, ``eps``, ``weight_decay``) is an input of the compiled step, so torch's
schedulers keep working. Everything else (flags, names, integers such as Muon's ``ns_steps``) shapes the graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

# keys of a group that choose among torch's own implementations of one update, or that are not about it
IGNORED = frozenset(
    {"params", "param_names", "foreach", "fused", "capturable", "differentiable", "initial_lr"}
)
# the default path, whose scalars are Python doubles
PATH = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}


class Stale(Exception):
    """The optimizer's groups changed in a way that needs another trace (a flag was flipped, a zero weight decay
    became non-zero, a parameter was added)."""


def numbers(group: Mapping[str, Any], written: Collection[str] = ()) -> dict[str, float]:
    """Every float of a group by name (``lr``, ``betas.0``), 0-d tensors read; ``lr`` also when it is an int, and so are
    those that the step itself writes (``k``)."""
    out: dict[str, float] = {}
    for key, value in group.items():
        if key in IGNORED and key not in written:
            continue
        if key in written:
            out[key] = float(value)
            continue
        if isinstance(value, tuple | list):
            out.update({f"{key}.{i}": float(v) for i, v in enumerate(value) if _is_float(v)})
        elif _is_float(value) or (key == "lr" and isinstance(value, int | np.integer)):
            out[key] = float(value)
    return out


def literals(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], written: Collection[str] = ()
) -> tuple[tuple[str, Any], ...]:
    """Everything else of a group that can shape the graph, as a hashable signature."""
    names = numbers(group, written)
    ignored = IGNORED if torchs_step(type(optimizer)) else IGNORED - PATH.keys()
    out: list[tuple[str, Any]] = []
    for key, value in sorted(group.items()):
        if key in ignored or key in names:
            continue
        if isinstance(value, tuple | list):
            out.append(
                (key, tuple(None if f"{key}.{i}" in names else _hashable(v) for i, v in enumerate(value)))
            )
        else:
            out.append((key, value if isinstance(value, int | str | None) else repr(value)))
    return tuple(out)


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else repr(value)


@cache
def torchs_step(cls: type[torch.optim.Optimizer]) -> bool:
    """Whether a class steps as torch's own do, whose paths (foreach, fused...) compute the same."""
    return inspect.unwrap(cls.step).__module__.startswith("torch.optim.")


def traced_groups(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The group as the tracer runs it, tensors as plain numbers, and as it runs it where the tracer refuses that.

    torch's own optimizers compute the same on each of their paths, and the default one's scalars are doubles. Another
    library's ``foreach`` may round where its loop does not (LaProp of pytorch-optimizer has its step sizes in a
    float32 tensor), so the path that eager takes comes first.
    """
    plain = {k: _plain(v) for k, v in group.items()}
    default = {**plain, **{k: v for k, v in PATH.items() if k in group}}
    if torchs_step(type(optimizer)) or "foreach" not in group or group["foreach"] is False:
        return [default]
    return [{**default, "foreach": group["foreach"]}, default]


def _plain(value: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    one = isinstance(value, torch.Tensor) and value.numel() == 1
    return value.item() if one or (_is_float(value) and not isinstance(value, float)) else value


def encode(values: Mapping[str, float], names: tuple[str, ...]) -> np.ndarray:
    """float32[n, 3]: each double as a sum of three float32, which is exact.

    A plain float32 would lose what ``1 - beta2`` lives on, and a float64 input would be cut to float32 where
    jax's x64 mode is off.
    """
    double = np.array([values[name] for name in names], np.float64)
    high = double.astype(np.float32)
    rest = np.subtract(double, high, out=np.zeros_like(double), where=np.isfinite(high))
    middle = rest.astype(np.float32)
    low = (rest - middle).astype(np.float32)
    return np.stack([high, middle, low], axis=-1)


def _is_float(value: Any) -> bool:
    """A number of numpy's (``lr = schedule[i]``) is one as well."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and value.is_floating_point()
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind == "f"
    return isinstance(value, float | np.floating)
