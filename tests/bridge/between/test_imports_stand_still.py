"""The first ``detente.compile`` of a process imports JAX, and leaves every generator where it is."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import random
import numpy as np
import torch
import {how}

torch.manual_seed(0), np.random.seed(0), random.seed(0)
model = torch.nn.Linear(3, 2)
batch = torch.ones(4, 3)
adam = torch.optim.Adam(model.parameters())
if {steps}:
    step = {name}.compile(model, lambda m, b: m(b).square().mean(), adam, example_batch=batch, cache=False, quiet=True)
    float(step(batch)), float(step(batch))
print(random.random(), np.random.rand(), np.random.randn(), float(torch.rand(1)))
"""


def drawn(how: str, name: str, steps: int) -> str:
    program = PROGRAM.format(how=how, name=name, steps=steps)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_what_a_loop_draws_behind_it_is_what_it_draws_in_eager() -> None:
    wanted = drawn("detente", "detente", 0)
    assert wanted == drawn("detente", "detente", 1)
    assert wanted == drawn("detente.bridge", "detente.bridge", 1)
