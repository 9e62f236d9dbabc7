"""Names and shapes as six libraries give them, written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detente.workloads.own.mapping.map_weights import Tensor, map_weights
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


SCALE = ("scale", "bias")


def bert(layers: int = 12) -> list[Tensor]:
    """transformers' BertModel, small."""
    found = [
        Tensor("embeddings.word_embeddings.weight", (100, 8), "Embedding"),
        Tensor("embeddings.position_embeddings.weight", (50, 8), "Embedding"),
        Tensor("embeddings.token_type_embeddings.weight", (2, 8), "Embedding"),
        *norm("embeddings.LayerNorm", 8),
    ]
    for i in range(layers):
        at = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            found += linear(f"{at}.attention.self.{part}", 8, 8)
        found += linear(f"{at}.attention.output.dense", 8, 8) + norm(f"{at}.attention.output.LayerNorm", 8)
        found += linear(f"{at}.intermediate.dense", 8, 32) + linear(f"{at}.output.dense", 32, 8)
        found += norm(f"{at}.output.LayerNorm", 8)
    return found + linear("pooler.dense", 8, 8)


def bert_in_nnx(
    norms: tuple[str, str] = ("attention_norm", "mlp_norm"), layers: int = 12, start: int = 0
) -> list[Tensor]:
    """BERT as one would write it in NNX."""
    found = [
        Tensor("token_embedding.embedding", (100, 8), "nnx.Embed"),
        Tensor("position_embedding.embedding", (50, 8), "nnx.Embed"),
        Tensor("type_embedding.embedding", (2, 8), "nnx.Embed"),
        *norm("embedding_norm", 8, "nnx.LayerNorm", SCALE),
    ]
    for i in range(start, layers + start):
        at = f"layers.{i}"
        for part in ("query", "key", "value"):
            found += dense(f"{at}.attention.{part}", 8, (2, 4), "nnx.LinearGeneral")
        found += dense(f"{at}.attention.out", (2, 4), 8, "nnx.LinearGeneral")
        found += dense(f"{at}.fc1", 8, 32) + dense(f"{at}.fc2", 32, 8)
        found += [t for name in norms for t in norm(f"{at}.{name}", 8, "nnx.LayerNorm", SCALE)]
    return found + dense("pooler", 8, 8)


def conv1d(name: str, inputs: int, outputs: int) -> list[Tensor]:
    return [
        Tensor(f"{name}.weight", (inputs, outputs), "Conv1D"),
        Tensor(f"{name}.bias", (outputs,), "Conv1D"),
    ]


def gpt2(layers: int = 12) -> list[Tensor]:
    """transformers' GPT2LMHeadModel, small, its head tied."""
    found = [
        Tensor("transformer.wte.weight", (100, 8), "Embedding"),
        Tensor("transformer.wpe.weight", (50, 8), "Embedding"),
    ]
    for i in range(layers):
        at = f"transformer.h.{i}"
        found += norm(f"{at}.ln_1", 8) + norm(f"{at}.ln_2", 8)
        found += conv1d(f"{at}.attn.c_attn", 8, 24) + conv1d(f"{at}.attn.c_proj", 8, 8)
        found += conv1d(f"{at}.mlp.c_fc", 8, 32) + conv1d(f"{at}.mlp.c_proj", 32, 8)
    return found + norm("transformer.ln_f", 8)


def gpt2_in_linen(layers: int = 12) -> list[Tensor]:
    """GPT-2 in Linen, with the names that Linen gives."""
    found = [
        Tensor("wte.embedding", (100, 8), "linen.Embed"),
        Tensor("wpe.embedding", (50, 8), "linen.Embed"),
    ]
    for i in range(layers):
        at = f"Block_{i}"
        found += [t for k in (0, 1) for t in norm(f"{at}.LayerNorm_{k}", 8, "linen.LayerNorm", SCALE)]
        attention = f"{at}.MultiHeadDotProductAttention_0"
        for part in ("query", "key", "value"):
            found += dense(f"{attention}.{part}", 8, (2, 4), "linen.DenseGeneral")
        found += dense(f"{attention}.out", (2, 4), 8, "linen.DenseGeneral")
        found += dense(f"{at}.Dense_0", 8, 32, "linen.Dense") + dense(f"{at}.Dense_1", 32, 8, "linen.Dense")
    return found + norm("LayerNorm_0", 8, "linen.LayerNorm", SCALE)
