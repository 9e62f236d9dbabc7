"""A language model in torch, and the same in plain JAX with a place for every way of writing it, right or wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from detente.worker.layers import in_jax, in_torch
from detente.worker.layers.compare import first_difference
from detente.worker.layers.difference import Difference
from detente.worker.layers.record import Boundary

WIDTH, HEADS, TOKENS, VOCABULARY, ROWS = 8, 2, 5, 11, 3

Arrays = dict[str, np.ndarray]


def drawn(module: nn.Module, seed: int = 0) -> Any:
    """In float64, with no tensor at zero or one: a bias of zeros would hide that it is missing."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                ones = tensor.dim() == 1 and name.endswith(("weight", "running_var"))
                tensor.copy_(1 + 0.2 * noise.tanh() if ones else 0.4 * noise)
    return module


def torch_side(module: nn.Module, *args: Any) -> list[Boundary]:
    """torch's record of one forward pass."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return in_torch.walk(lambda: module(*args), named)


def jax_side(function: Callable[..., Any], leaves: Mapping[str, np.ndarray], *args: Any) -> list[Boundary]:
    """JAX's record in float64, whatever the process computes in."""
    with jax.enable_x64(True):
        return in_jax.walk(function, leaves, *args)


class Block(nn.Module):
    """Norm before attention and before the feed-forward, projections one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (f(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Lm(nn.Module):
    """Embeddings of tokens and places, blocks, a norm, and the embedding again as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.wte.weight)


def dense(p: Arrays, name: str, x: Any) -> Any:
    """Kernels are (in, out), as in Flax."""
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def norm(p: Arrays, name: str, x: Any, eps: float = 1e-6) -> Any:
    """As torch computes it."""
    mean = x.mean(-1, keepdims=True)
    x = (x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + eps)
    return x * p[f"{name}.weight"] + p[f"{name}.bias"]


def project(p: Arrays, name: str, y: Any, dense: Any = dense) -> tuple[Any, Any, Any]:
    """q, k and v, (rows, tokens, heads, per head)."""
    return tuple(dense(p, f"{name}.{n}", y).reshape(*y.shape[:-1], HEADS, -1) for n in "qkv")  # type: ignore[return-value]


def attend(q: Any, k: Any, v: Any, masked: bool = True, scaled: bool = True) -> Any:
    """Causal attention."""
    scores = jnp.einsum("...qhd,...khd->...hqk", q, k) / (np.sqrt(q.shape[-1]) if scaled else 1.0)
    if masked:
        scores = jnp.where(jnp.tri(q.shape[-3], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores), v)


def block(
    p: Arrays,
    name: str,
    x: Any,
    *,
    dense: Any = dense,
    norm1: Any = norm,
    norm2: Any = norm,
    project: Any = project,
    attend: Any = attend,
    gelu: Any = lambda x: jax.nn.gelu(x, approximate=False),
    residual: bool = True,
) -> Any:
    """``Block`` with every part to be replaced by another way of writing it."""
    q, k, v = project(p, name, norm1(p, f"{name}.norm1", x))
    y = dense(p, f"{name}.out", attend(q, k, v).reshape(x.shape))
    x = x + y if residual else y
    y = dense(p, f"{name}.fc1", norm2(p, f"{name}.norm2", x))
    return x + dense(p, f"{name}.fc2", gelu(y))


def lm(
    p: Arrays, ids: Any, *, second: Any = block, first: Any = block, embed: Any = None, last: Any = norm
) -> Any:
    """``Lm``; ``second`` is where a fault is planted."""
    x = embed(p, ids) if embed else p["wte.weight"][ids] + p["wpe.weight"][: ids.shape[-1]]
    x = second(p, "blocks.1", first(p, "blocks.0", x))
    return last(p, "norm", x) @ p["wte.weight"].T


def leaves_of(module: nn.Module) -> Arrays:
    """Of the torch model: products turned round, embeddings as they are, names kept."""
    return {
        name: (a.T if a.ndim == 2 and not name.startswith(("wte", "wpe")) else a).copy()
        for name, a in ((n, t.detach().numpy()) for n, t in module.named_parameters())
    }


def same(leaves: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Names are torch's."""
    return {name: (name,) for name in leaves}


def lm_difference(
    function: Callable[..., Any],
    *,
    change: Callable[[Arrays], Arrays] = lambda leaves: leaves,
    parts: Mapping[str, Sequence[str]] | None = None,
    losses: tuple[float, float] | None = None,
) -> Difference | None:
    """Between ``Lm`` and ``function(leaves, ids)``, whose leaves ``change`` makes of the plain ones."""
    module = drawn(Lm())
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, TOKENS))
    right = torch_side(module, torch.from_numpy(ids))
    leaves = leaves_of(module)
    named = {**same(leaves), **{n: tuple(p) for n, p in (parts or {}).items()}}
    return first_difference(right, jax_side(function, change(leaves), ids), named, losses=losses)
