"""What benchmarks/bridge_large.py does at 3 B parameters, at a few thousand, with its own code."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bridge_large
from detente import bridge


@pytest.mark.long
def test_the_benchmark_trains_its_tiny_shape() -> None:
    row = bridge_large.train("tiny", tokens=16, steps=3, lr=0.1, form="inside", certificate="full")
    assert (row["form"], row["iterations"]) == ("inside", (4,))
    assert row["losses"][0] > row["losses"][1] > row["losses"][2]
    # SGD keeps no state: the step is given the weights and next to nothing else
    assert 2 * row["parameters"] <= row["argument"] < 2.1 * row["parameters"] + 4096
    text = bridge_large.page(row, "a command")
    assert f"{row['parameters']:,} parameters" in text and f"| 2 | {row['losses'][2]:.4f} |" in text


def test_a_meta_model_updated_inside_the_loop_trains_as_the_ordinary_step() -> None:
    """bfloat16, the same seed: the update of each layer inside the loop against all updates at the end."""
    ids = torch.randint(0, 256, (1, 16), generator=torch.Generator().manual_seed(0))
    losses = {}
    for form in ("rolled+full", "inside"):
        model = bridge_large.llama("tiny")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = bridge.compile(
            model,
            bridge_large.loss,
            optimizer,
            example_batch=ids,
            weights="init",
            seed=0,
            form=form,
            certificate="none",
        )
        losses[form] = [float(step(ids)) for _ in range(3)]
        assert all(p.is_meta for p in model.parameters())
    assert losses["inside"][0] == losses["rolled+full"][0]
    for ours, theirs in zip(losses["inside"], losses["rolled+full"], strict=True):
        assert abs(ours - theirs) <= 2**-7 * theirs
