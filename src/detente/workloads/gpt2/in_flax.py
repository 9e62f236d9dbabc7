"""``gpt2`` in Flax NNX.

Style: the transformer of google/flax's ``examples/gemma`` (NNX) for the module, the section "Scan over layers"
of Flax's guide "Flax basics" (flax.readthedocs.io, nnx_basics) for stacked layers. Names of attributes follow
the torch model, so the two can be read side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.gpt2.spec import EPSILON
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

# A list of modules; before 0.12 Flax took a plain one and had no name for it.
Modules = getattr(nnx, "List", list)


@dataclass(frozen=True)
class Dtypes:
    """``parameters`` are stored as, ``compute`` is what the operands of products are cast to."""

    parameters: str
    compute: str


def layer_norm(hidden: int, dtypes: Dtypes, rngs: nnx.Rngs) -> nnx.LayerNorm:
    # Flax's default epsilon is 1e-6. Its fast variance, E[x^2] - E[x]^2, loses digits that torch keeps. Without
    # a dtype, LayerNorm computes in the parameters' dtype, as autocast does.
    return nnx.LayerNorm(
        hidden, epsilon=EPSILON, use_fast_variance=False, param_dtype=jnp.dtype(dtypes.parameters), rngs=rngs
    )


def linear(inputs: int, outputs: int, dtypes: Dtypes, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(
        inputs, outputs, dtype=jnp.dtype(dtypes.compute), param_dtype=jnp.dtype(dtypes.parameters), rngs=rngs
    )


class Attention(nnx.Module):
    """Causal self-attention; one projection to query, key and value."""

    def __init__(self, hidden: int, heads: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.c_attn = linear(hidden, 3 * hidden, dtypes, rngs)
        self.c_proj = linear(hidden, hidden, dtypes, rngs)
        self.heads = heads

    def __call__(self, x: jax.Array) -> jax.Array:
        b, t, h = x.shape
        q, k, v = (
            part.reshape(b, t, self.heads, h // self.heads) for part in jnp.split(self.c_attn(x), 3, axis=-1)
        )
        # Written out: jax.nn.dot_product_attention takes its softmax in float32 even where the inputs are
        # float64, and then the proof in float64 could only hold to 1e-8.
        logits = jnp.einsum("btnd,bsnd->bnts", q, k)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32)) * (h // self.heads) ** -0.5
        seen = jnp.tril(jnp.ones((t, t), bool))
        shares = jax.nn.softmax(jnp.where(seen, logits, jnp.finfo(logits.dtype).min), axis=-1)
        mixed = jnp.einsum("bnts,bsnd->btnd", shares.astype(v.dtype), v)
        return self.c_proj(mixed.reshape(b, t, h))


class FeedForward(nnx.Module):
    def __init__(self, hidden: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.c_fc = linear(hidden, 4 * hidden, dtypes, rngs)
        self.c_proj = linear(4 * hidden, hidden, dtypes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        # transformers' "gelu_new" is the tanh form.
        return self.c_proj(nnx.gelu(self.c_fc(x), approximate=True))


class Block(nnx.Module):
    def __init__(self, hidden: int, heads: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.ln_1 = layer_norm(hidden, dtypes, rngs)
        self.attn = Attention(hidden, heads, dtypes=dtypes, rngs=rngs)
        self.ln_2 = layer_norm(hidden, dtypes, rngs)
        self.mlp = FeedForward(hidden, dtypes=dtypes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nnx.Module):
    """``input_ids`` (batch, sequence) to logits (batch, sequence, vocab)."""

    def __init__(self, size: Size, *, dtypes: Dtypes, scan: bool, rngs: nnx.Rngs) -> None:
        hidden, heads = size["hidden"], size["heads"]
        stored = jnp.dtype(dtypes.parameters)
        self.wte = nnx.Embed(size["vocab"], hidden, param_dtype=stored, rngs=rngs)
        self.wpe = nnx.Embed(size["positions"], hidden, param_dtype=stored, rngs=rngs)
        if scan:

            @nnx.split_rngs(splits=size["layers"])
            @nnx.vmap(in_axes=0, out_axes=0)
            def stacked(rngs: nnx.Rngs) -> Block:
                return Block(hidden, heads, dtypes=dtypes, rngs=rngs)

            self.h = stacked(rngs)
        else:
            self.h = Modules(Block(hidden, heads, dtypes=dtypes, rngs=rngs) for _ in range(size["layers"]))
        self.ln_f = layer_norm(hidden, dtypes, rngs)
        self.scan = scan
        self.compute = dtypes.compute

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        x = self.wte(input_ids) + self.wpe(jnp.arange(input_ids.shape[1]))
        if self.scan:

            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def through(x: jax.Array, block: Block) -> jax.Array:
                return block(x)

            x = through(x, self.h)
        else:
            for block in self.h:
                x = block(x)
        x = self.ln_f(x)
        # Tied to the token embedding. Embed.attend would multiply in the embedding's dtype, not ``compute``.
        return x.astype(self.compute) @ self.wte.embedding[...].astype(self.compute).T


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    return GPT2(size, dtypes=Dtypes(parameters, compute), scan=scan, rngs=nnx.Rngs(0))


def loss(module: nnx.Module, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Position t predicts token t + 1; the mean over batch x (sequence - 1), in at least float32."""
    tokens = batch["input_ids"]
    logits = module(tokens)
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_p = jax.nn.log_softmax(wide[:, :-1], axis=-1)
    picked = jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1)
    return -jnp.mean(picked), {"logits": logits}


_LINEAR = {"weight": "kernel", "bias": "bias"}
_NORM = {"weight": "scale", "bias": "bias"}
_BLOCK = {
    ("ln_1",): _NORM,
    ("attn", "c_attn"): _LINEAR,
    ("attn", "c_proj"): _LINEAR,
    ("ln_2",): _NORM,
    ("mlp", "c_fc"): _LINEAR,
    ("mlp", "c_proj"): _LINEAR,
}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    """No layout changes: transformers' Conv1D keeps (in, out), as Flax does."""
    rules = [
        WeightRule("transformer.wte.weight", ("wte", "embedding")),
        WeightRule("transformer.wpe.weight", ("wpe", "embedding")),
        WeightRule("transformer.ln_f.weight", ("ln_f", "scale")),
        WeightRule("transformer.ln_f.bias", ("ln_f", "bias")),
    ]
    for i in range(size["layers"]):
        for module, leaves in _BLOCK.items():
            for torch_leaf, flax_leaf in leaves.items():
                name = ".".join(("transformer", "h", str(i), *module, torch_leaf))
                path = ("h", *module, flax_leaf) if scan else ("h", i, *module, flax_leaf)
                rules.append(WeightRule(name, path, layer=i if scan else None))
    return tuple(rules)
