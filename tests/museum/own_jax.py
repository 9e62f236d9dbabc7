"""Honest models of a user's own in JAX that a rule once stumbled over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

POSITIONS, WIDTH, WORDS = 256, 32, 64
EXPERTS, TOKENS, CAPACITY = 4, 16, 16


def _drawn(*shape: int) -> Any:
    return jnp.asarray(np.random.randn(*shape).astype("float32") / np.sqrt(shape[-2]))


def _sinusoids() -> np.ndarray:
    rate = np.exp(-np.log(10_000.0) * np.arange(0, WIDTH, 2) / WIDTH)
    angle = np.arange(POSITIONS)[:, None] * rate
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype("float32")


TABLE = _sinusoids()


def _table_loss(params: Any, batch: Any) -> Any:
    x = params["words"][batch["tokens"]] + TABLE
    x = x + jax.nn.gelu(x @ params["up"]) @ params["down"]
    picked = jnp.take_along_axis(jax.nn.log_softmax(x @ params["head"]), batch["y"][..., None], axis=-1)
    return -picked.mean(), {"picked": picked}


def table(batch: int = 2) -> Any:
    """A table of positions is a constant of the program, as large as all of the weights, and no weight."""
    params = {
        "words": _drawn(WORDS, WIDTH),
        "up": _drawn(WIDTH, 2 * WIDTH),
        "down": _drawn(2 * WIDTH, WIDTH),
        "head": _drawn(WIDTH, WORDS),
    }
    rows = {name: np.random.randint(0, WORDS, (batch, POSITIONS)) for name in ("tokens", "y")}
    return params, _table_loss, rows


def _ranks_loss(params: Any, batch: Any) -> Any:
    chosen = jax.nn.one_hot(batch["expert"], EXPERTS, dtype=jnp.int32)
    before = jnp.tril(jnp.ones((TOKENS, TOKENS), jnp.int32))
    place = jnp.einsum("ts,bse->bte", before, chosen)  # how many of its expert came before, itself counted
    kept = (chosen * (place <= CAPACITY)).astype(jnp.float32)
    gates = jax.nn.softmax(batch["x"] @ params["gate"])
    y = jnp.einsum("btd,edf->btef", batch["x"], params["experts"])
    y = jnp.einsum("btef,bte->btf", y, (kept * gates).astype(y.dtype))
    return jnp.mean((y - batch["target"]) ** 2)


def ranks(batch: int = 4) -> Any:
    """A mixture of experts counts the tokens of each by a product of integers (Switch Transformer)."""
    params = {"gate": _drawn(WIDTH, EXPERTS), "experts": _drawn(EXPERTS, WIDTH, WIDTH)}
    rows = {
        "x": np.random.randn(batch, TOKENS, WIDTH).astype("float32"),
        "target": np.random.randn(batch, TOKENS, WIDTH).astype("float32"),
        "expert": np.random.randint(0, EXPERTS, (batch, TOKENS)),
    }
    return params, _ranks_loss, rows


def _encoded_loss(params: Any, batch: Any) -> Any:
    waves = [f(batch["x"] * 2.0**k) for k in range(8) for f in (jnp.sin, jnp.cos)]
    hidden = jax.nn.gelu(jnp.concatenate([batch["x"], *waves], axis=-1) @ params["up"])
    return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


def encoded(batch: int = 1024) -> Any:
    """A radiance field in small: much of the step is an encoding of the inputs, which no weight is in."""
    params = {"up": _drawn(3 * 17, WIDTH), "down": _drawn(WIDTH, 4)}
    rows = {
        "x": (2 * np.random.rand(batch, 3) - 1).astype("float32"),
        "y": np.random.rand(batch, 4).astype("float32"),
    }
    return params, _encoded_loss, rows
