"""Batches that several workloads draw, each by the dimensions of a size."""

from __future__ import annotations

import numpy as np

from detente.workloads.workload import Size

Batch = dict[str, np.ndarray]


def hidden_states(size: Size, rng: np.random.Generator) -> Batch:
    """``x`` and ``target``, both (batch, sequence, hidden) float32 from a standard normal."""
    shape = (size["batch"], size["sequence"], size["hidden"])
    return {name: rng.standard_normal(shape, dtype=np.float32) for name in ("x", "target")}


def tokens(size: Size, rng: np.random.Generator) -> Batch:
    """``input_ids`` (batch, sequence), int64, uniform over the vocabulary; they are also the labels."""
    return {"input_ids": rng.integers(0, size["vocab"], (size["batch"], size["sequence"]), dtype=np.int64)}


def labelled_sentences(size: Size, rng: np.random.Generator) -> Batch:
    """``input_ids`` (batch, sequence) and ``labels`` (batch,), int64. Token 0 is padding, to whose row torch gives no
    gradient; there is none of it here, as the sentences are of one length."""
    return {
        "input_ids": rng.integers(1, size["vocab"], (size["batch"], size["sequence"]), dtype=np.int64),
        "labels": rng.integers(0, size["labels"], size["batch"], dtype=np.int64),
    }


def labelled_pictures(size: Size, rng: np.random.Generator, labels: str = "labels", grain: int = 1) -> Batch:
    """``images`` (batch, 3, image, image) float32, standard normal, channels first as torch has them; ``labels``
    (batch,) int64, under as many as the dimension ``labels`` says. Squares of ``grain`` pixels have one colour, the
    last ones cut off at the edge."""
    extent, coarse = size["image"], -(-size["image"] // grain)
    drawn = rng.standard_normal((size["batch"], 3, coarse, coarse), dtype=np.float32)
    return {
        "images": drawn.repeat(grain, 2).repeat(grain, 3)[:, :, :extent, :extent],
        "labels": rng.integers(0, size[labels], size["batch"], dtype=np.int64),
    }
