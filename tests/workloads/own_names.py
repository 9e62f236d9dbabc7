"""Names and shapes as six libraries give them, written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from detente.workloads.own.mapping import Tensor, map_weights
from detente.workloads.weights import to_canonical, to_framework

Shape = tuple[int, ...]


def tensors(lines: str, owners: dict[str, str] | None = None) -> list[Tensor]:
    """``name shape owner [state]`` a line; a shape is 3x4, a scalar is ()."""
    found = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, shape, *rest = line.split()
        state = rest[-1:] == ["state"]
        owner = (rest[: len(rest) - state] or [""])[0]
        sizes = () if shape == "()" else tuple(int(n) for n in shape.split("x"))
        found.append(Tensor(name, sizes, owner, not state))
    return found


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> list[Tensor]:
    found = [Tensor(f"{name}.weight", (outputs, inputs), "Linear")]
    return found + [Tensor(f"{name}.bias", (outputs,), "Linear")] * bias


def dense(
    name: str,
    inputs: Shape | int,
    outputs: Shape | int,
    owner: str = "nnx.Linear",
    bias: bool = True,
    leaves: tuple[str, str] = ("kernel", "bias"),
) -> list[Tensor]:
    """(in, out), or Equinox's (out, in)."""
    i, o = ((n,) if isinstance(n, int) else n for n in (inputs, outputs))
    matrix = o + i if owner.startswith("eqx") else i + o
    return [Tensor(f"{name}.{leaves[0]}", matrix, owner)] + [Tensor(f"{name}.{leaves[1]}", o, owner)] * bias


def norm(
    name: str, size: int, owner: str = "LayerNorm", leaves: Sequence[str] = ("weight", "bias")
) -> list[Tensor]:
    return [Tensor(f"{name}.{leaf}", (size,), owner) for leaf in leaves]


def arrays(tensors: Sequence[Tensor], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape) for t in tensors}


def mapped(torch: Sequence[Tensor], jax: Sequence[Tensor], table=None):
    """The map; random arrays of torch's; the leaves that it makes of them by their dotted names. Checks that every
    leaf is there in its shape, and that the way back is the way back."""
    rules = map_weights(torch, jax, table)
    weights = arrays(torch)
    leaves = to_framework(rules, weights)
    assert {".".join(path): leaf.shape for path, leaf in leaves.items()} == {t.name: t.shape for t in jax}
    back = to_canonical(rules, leaves)
    assert back.keys() == weights.keys()
    assert all(np.array_equal(back[name], weights[name]) for name in weights)
    return rules, weights, {".".join(path): leaf for path, leaf in leaves.items()}


def by_name(rules) -> dict[str, str]:
    return {rule.name: ".".join(map(str, rule.path)) for rule in rules}


Build = Callable[[], list[Tensor]]
