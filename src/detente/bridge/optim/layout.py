"""``optimizer.state[p]`` in and out: torch's keys, dtypes and Python numbers on one side, JAX arrays on the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from detente.bridge.graph import Aval
from detente.bridge.lower.precision import x64
from detente.bridge.optim.program import Leaf
from detente.bridge.refusal import refuse


def leaves_of(live: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The layout of a live state. Raises Refused for an entry that is neither tensor nor number."""
    leaves = []
    for key, value in live.items():
        if isinstance(value, torch.Tensor):
            leaves.append(Leaf(key, Aval(tuple(value.shape), str(value.dtype).removeprefix("torch."))))
        elif value is None:
            leaves.append(Leaf(key, Aval((), "float64"), "none"))
        elif isinstance(value, int | float):
            leaves.append(Leaf(key, Aval((), "float64"), "int" if isinstance(value, int) else "float"))
        else:
            raise refuse(
                "optimizer", f"the optimizer's state has {key!r} = {value!r}, which is no tensor or number"
            )
    return tuple(leaves)


def from_torch(live: Mapping[str, Any], leaves: tuple[Leaf, ...]) -> dict[str, jax.Array]:
    """Copies of the leaves as JAX arrays. A Python number becomes a 0-d float64 array, and so does a float64
    tensor, also where jax's x64 mode is off."""
    with x64():
        return {leaf.key: array_of(live[leaf.key]) for leaf in leaves}


def into_torch(
    target: dict[str, Any],
    entry: Mapping[str, Any],
    leaves: tuple[Leaf, ...],
    param: torch.Tensor,
    group: Mapping[str, Any],
) -> None:
    """Write one parameter's leaves into ``optimizer.state[p]``, in place where a tensor is already there.

    A new 0-d leaf lands on the CPU as torch would have put it, unless the group is capturable or fused.
    """
    for leaf in leaves:
        if leaf.kind == "none":
            target[leaf.key] = None
            continue
        value = np.asarray(entry[leaf.key])
        if leaf.kind != "tensor":
            target[leaf.key] = int(value) if leaf.kind == "int" else float(value)
            continue
        new = tensor_of(value, leaf.aval)
        old = target.get(leaf.key)
        if (
            old is not None
            and isinstance(old, torch.Tensor)
            and old.shape == new.shape
            and old.dtype == new.dtype
        ):
            with torch.no_grad():
                old.copy_(new)
        else:
            on_host = new.dim() == 0 and not (group.get("capturable") or group.get("fused"))
            target[leaf.key] = new if on_host else new.to(param.device)


def array_of(value: Any) -> jax.Array:
    """A copy as a JAX array, of a number a 0-d float64 one. Under x64."""
    if not isinstance(value, torch.Tensor):
        return jnp.asarray(0.0 if value is None else float(value), jnp.float64)
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:  # numpy has no bfloat16 of its own
        return jnp.array(value.view(torch.int16).numpy().view(jnp.bfloat16), copy=True)
    return jnp.array(value.numpy(), copy=True)


def tensor_of(value: np.ndarray, aval: Aval) -> torch.Tensor:
    """A copy as torch has it."""
    if aval.dtype == "bfloat16":
        return torch.from_numpy(np.array(value).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(value)).to(getattr(torch, aval.dtype))
