"""Keys and masks of dropout by a kernel: the bits that XLA draws, and eager PyTorch's twin."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

import detente
from detente.bridge.kernels import build
from detente.bridge.kernels.targets import FOLDED, KEPT
from detente.bridge.lower.ops.random import keep_mask
from detente.bridge.random import threefry
from detente.bridge.random.keys import call_key, step_key

SHARES = (0.1, 0.25, 0.5, 0.3333, 0.999999, 1e-9, 1e-40)


def by_kernel(function: Any, *operands: Any) -> np.ndarray[Any, Any]:
    with build.calling():
        lowered = jax.jit(function).lower(*operands)
    assert "detente_threefry2x32" in lowered.as_text()
    return np.asarray(lowered.compile()(*operands))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 3), (3, 5), (16384,), (16385,), (5, 100, 333)])
@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_masks_are_xlas_and_the_twins_bit_for_bit(shape: tuple[int, ...], seed: int) -> None:
    for number, p in enumerate(SHARES):
        key = step_key(np.uint32(seed), np.uint32(number))
        kept = by_kernel(lambda key, p=p: keep_mask(key, p, shape), key)
        assert (kept == np.asarray(keep_mask(key, p, shape))).all()
        twins = threefry.bernoulli(threefry.fold_in(threefry.key(seed), number), 1.0 - p, shape)
        assert (kept == twins.numpy()).all()


@pytest.mark.parametrize("draw", [0, 1, 77, 2**31, 2**32 - 1])
def test_keys_are_xlas_and_the_twins(draw: int) -> None:
    key = step_key(np.uint32(5), np.uint32(3))
    words = by_kernel(lambda key, draw: jax.random.key_data(call_key(key, draw)), key, np.uint32(draw))
    assert tuple(words) == threefry.fold_in(threefry.fold_in(threefry.key(5), 3), draw)
    assert (words == np.asarray(jax.random.key_data(call_key(key, np.uint32(draw))))).all()


def test_every_row_of_a_mapped_draw_is_its_own() -> None:
    keys = jax.vmap(lambda k: jax.random.fold_in(step_key(0, 0), k))(np.arange(3, dtype=np.uint32))
    rows = by_kernel(jax.vmap(lambda key: keep_mask(call_key(key, 2), 0.5, (64,))), keys)
    plain = [np.asarray(keep_mask(jax.random.fold_in(key, 2), 0.5, (64,))) for key in keys]
    assert (rows == np.stack(plain)).all()


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32), nn.Dropout(0.3), nn.LayerNorm(32))
            for _ in range(8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize("form", ["unrolled", "rolled", "rolled+dots"])
def test_a_step_drops_what_eager_drops_and_what_it_drops_without_kernels(form: str, monkeypatch: Any) -> None:
    """The certificate is of eager's masks; a loop draws by a number that it counts."""
    losses, steps = {}, {}
    for kernels in ("1", "0"):
        monkeypatch.setenv(build.VARIABLE, kernels)
        build.kernels.cache_clear()
        torch.manual_seed(0)
        model, x = Dropping(), torch.randn(8, 32)
        step = detente.compile(
            model,
            lambda m, b: m(b).square().mean(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            example_batch=x,
            form=form,
            seed=7,
            quiet=True,
            cache=False,
        )
        losses[kernels], steps[kernels] = [float(step(x)) for _ in range(4)], step
        assert "passed" in str(step.certificate), "its masks are eager's"
    assert losses["1"] == pytest.approx(losses["0"], rel=1e-5)
    text = steps["1"].programs[0].compiled.executable.as_text()
    assert KEPT in text and FOLDED in text
    assert "detente_threefry" not in steps["0"].programs[0].compiled.executable.as_text()


def test_a_draw_by_the_kernel_is_known_as_one() -> None:
    """Who reads the program finds what draws (programs/draws.py), as in one without kernels."""
    from detente.programs.draws import draws
    from detente.programs.module import Instruction, Shape

    for target in (FOLDED, KEPT):
        assert draws(Instruction("custom-call", (Shape("pred"),), target=target))
