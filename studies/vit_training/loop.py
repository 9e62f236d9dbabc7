"""The study's own loop, as an exhibit: what it prints, and what happened meanwhile that it cannot see.

    python -m studies.vit_training.loop torch-eager            # torch-compile, jax
    python -m studies.vit_training.loop jax --batch 32 --precision bf16

One process per mode, 50 steps; the figure is the mean over steps 11 to 50 of the time around the whole body of the
loop, loader included, and nothing is synchronised. Beside it, from the same run: the part of those steps that was the
loader's, what was still running when the loop ended (found by waiting for it), and the same mean with that wait
counted; the loss of the first batch as the loop computes it, and as cross entropy.

Prints one line of JSON. The mode's framework is the only one that computes; the loader is torch's in every mode.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

STEPS, SKIPPED = 50, 10
LABELS = 1000


class Pictures(Dataset[tuple[Any, Any]]):
    """Random pictures, made one by one as they are asked for: numpy and channels last for JAX, torch and channels
    first for torch."""

    def __init__(self, count: int, image: int, *, channels_last: bool) -> None:
        self.count, self.image, self.channels_last = count, image, channels_last

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.channels_last:
            picture = np.random.rand(self.image, self.image, 3).astype(np.float32)
            return picture, np.random.randint(0, LABELS, size=(1,))
        return torch.rand(3, self.image, self.image), torch.randint(0, LABELS, ())


def as_numpy(rows: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The study's collate for JAX; its labels stay (batch, 1)."""
    return np.stack([p for p, _ in rows]), np.stack([label for _, label in rows])


@dataclass
class Training:
    """``step`` takes the loader's batch and returns what it must be waited for by ``wait``. ``losses`` of a batch:
    as the loop computes it, and as cross entropy."""

    loader: DataLoader[Any]
    step: Callable[[Any], Any]
    wait: Callable[[Any], Any]
    losses: Callable[[Any], tuple[float, float]]


def in_torch(given: argparse.Namespace, *, compiled: bool) -> Training:
    from studies.vit_training import in_torch as written

    model, loss, _, optimizer = written.written(given.batch, given.layers, given.image)
    mixed = given.precision == "bf16"

    def value(batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return loss(model, {"pictures": batch[0], "labels": batch[1]})[0]

    forward = torch.compile(value) if compiled else value

    def step(batch: Any) -> Any:
        optimizer.zero_grad()
        found = forward(batch)
        found.backward()
        optimizer.step()
        return found

    def losses(batch: Any) -> tuple[float, float]:
        with torch.no_grad():
            found = float(value(batch))
        return found, found

    pictures = Pictures(STEPS * given.batch, given.image, channels_last=False)
    return Training(DataLoader(pictures, batch_size=given.batch), step, lambda _: None, losses)


def in_jax(given: argparse.Namespace) -> Training:
    import jax
    from flax import nnx

    from studies.vit_training import in_nnx

    compute = "bfloat16" if given.precision == "bf16" else "float32"
    model, _, _, optimizer = in_nnx.as_published(given.batch, given.layers, given.image, compute)
    graphdef, params = nnx.split(model, nnx.Param)
    state = optimizer.init(params)

    def value(params: Any, batch: Any) -> Any:
        # `loss_as_published` puts the axis back that the loader's labels have.
        named = {"pictures": batch[0], "labels": batch[1][:, 0]}
        return in_nnx.loss_as_published(nnx.merge(graphdef, params), named)[0]

    @jax.jit
    def update(params: Any, state: Any, batch: Any) -> Any:
        found, gradients = jax.value_and_grad(value)(params, batch)
        changes, state = optimizer.update(gradients, state, params)
        return found, jax.tree.map(lambda p, c: p + c, params, changes), state

    kept = [params, state]

    def step(batch: Any) -> Any:
        found, *kept[:] = update(*kept, batch)
        return found

    def losses(batch: Any) -> tuple[float, float]:
        named = {"pictures": batch[0], "labels": batch[1][:, 0]}
        fair = jax.jit(lambda p: in_nnx.loss(nnx.merge(graphdef, p), named)[0])
        return float(jax.jit(value)(kept[0], batch)), float(fair(kept[0]))

    pictures = Pictures(STEPS * given.batch, given.image, channels_last=True)
    loader = DataLoader(pictures, batch_size=given.batch, collate_fn=as_numpy)
    return Training(loader, step, jax.block_until_ready, losses)


MODES: dict[str, Callable[[argparse.Namespace], Training]] = {
    "torch-eager": lambda given: in_torch(given, compiled=False),
    "torch-compile": lambda given: in_torch(given, compiled=True),
    "jax": in_jax,
}


def measure(training: Training) -> dict[str, float]:
    """Seconds per step as the loop tells them, and what it does not tell."""
    whole: list[float] = []
    fetched: list[float] = []
    newest = None
    batches: Iterator[Any] = iter(training.loader)
    begun = at = time.perf_counter()
    for step in range(STEPS):
        batch = next(batches)
        fetched.append(time.perf_counter() - at)
        newest = training.step(batch)
        now = time.perf_counter()
        whole.append(now - at)
        at = now
        if step + 1 == SKIPPED:
            # What is under way here belongs to the first steps; how long it takes is not known without waiting, and
            # the loop does not wait.
            begun = now
    training.wait(newest)
    over = time.perf_counter()
    return {
        "told_s": statistics.fmean(whole[SKIPPED:]),
        "loader_s": statistics.fmean(fetched[SKIPPED:]),
        "left_s": over - at,
        "waited_s": (over - begun) / (STEPS - SKIPPED),
        "first_s": whole[0],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=sorted(MODES))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    np.random.seed(0)
    torch.set_num_threads(given.threads)
    training = MODES[given.mode](given)
    loss, cross_entropy = training.losses(next(iter(training.loader)))
    found = {"mode": given.mode, "batch": given.batch, "precision": given.precision, **measure(training)}
    print(json.dumps({**found, "loss": loss, "cross_entropy": cross_entropy}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
