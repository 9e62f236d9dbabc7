"""Attention and convolutions by kernels of ours: the same numbers as the plain forms in float64, what is not a
number included, and when they are called."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import detente
from detente.bridge.kernels import build
from detente.bridge.kernels.targets import ATTENTION, DEPTHWISE, OF_ATTENTION, OF_TAPS
from detente.bridge.lower.backwards import backwards
from detente.bridge.lower.ops import depthwise as depthwise_room
from detente.bridge.lower.ops.depthwise import depthwise
from detente.bridge.lower.ops.fused_attention import LEAST, fused_attention, is_taken
from detente.programs.count import count_program
from detente.programs.hlo import read_hlo
from detente.programs.kinds import kinds_of


def drawn(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def plain(query: Any, key: Any, value: Any, keep: Any, causal: bool, scale: float, dropout: float) -> Any:
    """The definition, in the operands' dtype."""
    scores = jnp.einsum("bhld,bhsd->bhls", query, key) * scale
    if causal:
        rows, columns = np.indices(scores.shape[-2:])
        scores = jnp.where(rows >= columns, scores, -jnp.inf)
    weights = jax.nn.softmax(scores, -1)
    if keep is not None:
        weights = jnp.where(keep, weights / (1 - dropout), 0)
    return jnp.einsum("bhls,bhse->bhle", weights, value)


# B, H, L, S, D, E, causal, dropout
ATTENTIONS = {
    "square": (2, 3, 70, 70, 16, 16, False, 0.0),
    "causal": (1, 2, 130, 130, 8, 8, True, 0.0),
    "dropout": (2, 2, 65, 65, 16, 16, False, 0.25),
    "causal with dropout": (1, 3, 97, 97, 16, 16, True, 0.5),
    "more keys": (2, 2, 33, 150, 16, 16, False, 0.0),
    "causal, more keys than rows": (1, 2, 40, 150, 8, 8, True, 0.0),
    "causal, fewer keys than rows": (1, 2, 150, 40, 8, 8, True, 0.0),
    "values of another width": (1, 2, 64, 64, 12, 20, False, 0.0),
    "odd widths": (1, 1, 67, 63, 7, 5, True, 0.1),
    "one row": (2, 2, 1, 1030, 16, 16, False, 0.0),
    "one head": (1, 1, 200, 64, 64, 64, False, 0.0),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_and_its_gradients_are_those_of_float64(name: str) -> None:
    b, h, rows, s, d, e, causal, dropout = ATTENTIONS[name]
    exact = [drawn(k, *shape) for k, shape in enumerate(((b, h, rows, d), (b, h, s, d), (b, h, s, e)))]
    weight = drawn(9, b, h, rows, e)
    keep = np.random.default_rng(5).random((b, h, rows, s)) >= dropout if dropout else None
    scale = 1.7 / math.sqrt(d)

    def by(run: Any, kind: Any) -> Any:
        operands = [jnp.asarray(t, kind) for t in exact]

        def loss(*operands: Any) -> Any:
            result = run(*operands, keep, causal, scale, dropout)
            return jnp.sum(result * jnp.asarray(weight, kind)), result

        (_, result), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*operands)
        return [result, *grads]

    with jax.enable_x64(True):
        wanted = [np.asarray(v) for v in by(plain, jnp.float64)]
    with backwards(), build.calling():
        before = build.kernels().calls()
        found = [np.asarray(v) for v in by(fused_attention, jnp.float32)]
    assert build.kernels().calls() == before + 2
    for mine, its in zip(found, wanted, strict=True):
        assert mine.dtype == np.float32
        assert np.linalg.norm(mine - its) <= 2e-6 * np.linalg.norm(its)


def test_large_scores_lose_nothing() -> None:
    """Scores of several hundred: the maximum is taken off before the exponential, and small weights become 0."""
    exact = [200 * drawn(k, 1, 2, 64, 16) for k in range(2)] + [drawn(2, 1, 2, 64, 16)]
    with jax.enable_x64(True):
        wanted = np.asarray(plain(*map(jnp.asarray, exact), None, False, 0.25, 0.0))
    with backwards(), build.calling():
        found = fused_attention(*(jnp.asarray(t, jnp.float32) for t in exact), None, False, 0.25, 0.0)
    # scores of 1e5 have an ulp of 0.008 in float32: where two lie within it the weights move as torch's do
    held = np.asarray(plain(*(jnp.asarray(t, jnp.float32) for t in exact), None, False, 0.25, 0.0))
    assert np.isfinite(found).all()
    assert np.linalg.norm(found - wanted) <= 4 * np.linalg.norm(held - wanted) + 1e-6


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_no_number_stays_where_it_would_be(poison: float) -> None:
    operands = [jnp.asarray(drawn(k, 1, 1, 70, 70), jnp.float32) for k in range(3)]
    operands[0] = operands[0].at[0, 0, 3, 5].set(poison)
    with backwards(), build.calling():
        found = np.asarray(fused_attention(*operands, None, False, 0.1, 0.0))
    its = np.asarray(plain(*operands, None, False, 0.1, 0.0))
    assert np.array_equal(np.isfinite(found), np.isfinite(its)) and not np.isfinite(its).all()


def test_rows_that_see_only_minus_infinity_are_zero_as_torchs() -> None:
    query, key, value = (jnp.abs(jnp.asarray(drawn(k, 1, 1, 64, 64), jnp.float32)) for k in range(3))
    query = query.at[0, 0, 2].set(-3e38)
    key = key + 10  # every score of row 2 overflows
    found = []
    with backwards(), build.calling():
        found = np.asarray(fused_attention(query, key, value, None, False, 1.0, 0.0))
    assert np.array_equal(found[0, 0, 2], np.zeros(64))


def test_many_threads_at_once_each_get_their_own() -> None:
    operands = [
        [jnp.asarray(drawn(10 * k + i, 1, 2, 128, 16), jnp.float32) for i in range(3)] for k in range(8)
    ]
    with backwards(), build.calling():
        each_gets_its_own(
            jax.jit(lambda q, k, v: fused_attention(q, k, v, None, False, 0.25, 0.0)), operands, 20
        )


def each_gets_its_own(run: Any, operands: Sequence[Sequence[Any]], times: int) -> None:
    """Every thread, of its own operands, as often as that: what was computed alone. ``run`` is traced here."""
    wanted = [np.asarray(run(*given)) for given in operands]
    wrong: list[int] = []

    def again(k: int) -> None:
        for _ in range(times):
            if not np.array_equal(np.asarray(run(*operands[k])), wanted[k]):
                wrong.append(k)

    threads = [threading.Thread(target=again, args=(k,)) for k in range(len(operands))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and not wrong


def test_what_is_taken() -> None:
    def taken(
        *shapes: tuple[int, ...], kind: Any = jnp.float32, mask: Any = None, dropout: float = 0.0
    ) -> bool:
        arrays = [jax.ShapeDtypeStruct(shape, kind) for shape in shapes]
        return is_taken(*arrays, mask, dropout)

    size = (1, 4, 96, 16)
    assert size[2] ** 2 >= LEAST
    assert not taken(size, size, size)  # not in a step
    with backwards():
        assert not taken(size, size, size)  # what is captured is the plain form
    with backwards(), build.calling():
        assert taken(size, size, size)
        assert not taken(size, size, size, kind=jnp.float64)
        assert not taken(size, size, size, kind=jnp.bfloat16)
        assert not taken(size, size, size, mask=jnp.ones((96, 96), bool))
        assert not taken(size, size, size, dropout=1.0)
        assert not taken(size[1:], size[1:], size[1:])
        assert not taken(size, (2, 4, 96, 16), (2, 4, 96, 16))  # broadcast over the batch
        assert not taken((1, 1, 64, 64), (1, 1, 64, 64), (1, 1, 64, 64))


# x (N, ..., C), kernel, padding, dilation
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any, tuple[int, ...]]] = {
    "as ConvNeXt's": ((2, 14, 13, 96), (7, 7), ((3, 3), (3, 3)), (1, 1)),
    "no multiple of a vector": ((2, 9, 8, 83), (3, 3), ((1, 1), (1, 1)), (1, 1)),
    "one channel more": ((1, 5, 6, 65), (3, 5), ((0, 2), (4, 1)), (1, 1)),
    "dilated": ((2, 11, 10, 20), (3, 2), ((2, 1), (0, 3)), (2, 3)),
    "padding wider than the kernel": ((1, 4, 4, 16), (2, 2), ((5, 4), (3, 6)), (1, 1)),
    "padding that cuts off": ((1, 9, 9, 16), (2, 2), ((-2, -1), (0, -3)), (1, 1)),
    "one dimension, causal": ((2, 64, 512), (4,), ((3, 0),), (1,)),
    "a kernel as large as its input": ((2, 3, 3, 7), (3, 3), ((0, 0), (0, 0)), (1, 1)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_depthwise_convolutions_are_those_of_float64(name: str) -> None:
    shape, kernel, padding, dilation = CONVOLUTIONS[name]
    x, taps = drawn(0, *shape), drawn(1, shape[-1], 1, *kernel)

    def by(kind: Any) -> Any:
        def loss(x: Any, taps: Any) -> Any:
            y = depthwise(x, taps, (1,) * len(kernel), padding, dilation)
            return jnp.sum(y * jnp.asarray(drawn(2, *y.shape), kind)), y

        (_, y), grads = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(
            jnp.asarray(x, kind), jnp.asarray(taps, kind)
        )
        return [np.asarray(v) for v in (y, *grads)]

    with jax.enable_x64(True):
        wanted = by(jnp.float64)
    with backwards(), build.calling():
        before = build.kernels().calls()
        found = by(jnp.float32)
    assert build.kernels().calls() == before + 3  # forward, and twice backward
    for mine, its in zip(found, wanted, strict=True):
        assert mine.shape == its.shape
        assert np.linalg.norm(mine - its) <= 2e-6 * np.linalg.norm(its)


class Small(nn.Module):
    """Both kernels in one step."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 32, 3, padding=1, groups=32)
        self.mix = nn.Linear(32, 96)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        query, key, value = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.mix(x).chunk(3, -1))
        rate = self.dropout if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


def small(monkeypatch: Any, kernels: str, tmp_path: Any, dropout: float = 0.1) -> tuple[Any, list[float]]:
    monkeypatch.setenv(build.VARIABLE, kernels)
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / kernels))
    build.kernels.cache_clear()
    torch.manual_seed(0)
    model = Small(dropout)
    x = torch.randn(2, 96, 32)
    step = detente.compile(
        model, lambda m, b: m(b).square().mean(), torch.optim.SGD(model.parameters(), lr=1.0), example_batch=x,
        seed=3, quiet=True,
    )  # fmt: skip
    return step, [step(x).item() for _ in range(6)]


def test_a_step_trains_as_without_them_and_draws_the_same_masks(monkeypatch: Any, tmp_path: Any) -> None:
    step, losses = small(monkeypatch, "1", tmp_path)
    data = (
        step.programs[0]
        .compiled.executable.runtime_executable()
        .hlo_modules()[0]
        .as_serialized_hlo_module_proto()
    )
    held = step.programs[0].compiled.executable.as_text()
    assert all(f'"{target}"' in held for target in (DEPTHWISE, OF_TAPS, ATTENTION, OF_ATTENTION))
    assert set(count_program(data, "hlo").product_dtypes) == {"f32"}
    assert {"products", "convolutions"} <= set(kinds_of(read_hlo(data)).values())
    without, others = small(monkeypatch, "0", tmp_path)
    assert without.programs[0].compiled.calls is None
    assert losses == pytest.approx(others, rel=2e-6)
    assert len(set(losses)) == 6


def test_its_operations_are_counted(monkeypatch: Any, tmp_path: Any) -> None:
    """2 x 2 heads x (96 x 96) / 2 x 16 for each of two products forward and five backward, and the rest as without."""
    counted = []
    for kernels in "10":
        step, _ = small(monkeypatch, kernels, tmp_path, 0.0)
        executable = step.programs[0].compiled.executable
        data = executable.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
        counted.append(count_program(data, "hlo"))
    assert not counted[0].custom_calls and not counted[1].custom_calls  # each says what it multiplies
    attention = 2 * 2 * 2 * 96 * 96 * 16
    assert counted[0].flops >= attention * 7 // 2


def test_a_capture_and_an_export_hold_no_call(monkeypatch: Any, tmp_path: Any) -> None:
    from detente.bridge.program.program import exported

    step, _ = small(monkeypatch, "1", tmp_path)
    compiled = step.programs[0].compiled
    assert compiled.calls >= 4
    assert "detente_" not in compiled.lowered.as_text()
    assert "detente_" not in str(exported(compiled).mlir_module())


def test_a_kernel_that_is_not_taken_is_the_sum(monkeypatch: Any) -> None:
    monkeypatch.setattr(depthwise_room, "may_call", lambda: False)
    x, taps = jnp.asarray(drawn(0, 1, 6, 6, 8), jnp.float32), jnp.asarray(drawn(1, 8, 1, 3, 3), jnp.float32)
    before = build.kernels().calls()
    with backwards(), build.calling():
        depthwise(x, taps, (1, 1), ((1, 1), (1, 1)), (1, 1)).block_until_ready()
    assert build.kernels().calls() == before
