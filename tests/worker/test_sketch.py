"""The sketch: what it keeps, what it estimates, and that a change is sketched as the difference itself."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from detente.worker.sketch import BUCKETS, WHOLE, rms, sketch

SIZES = (0, 1, WHOLE, WHOLE + 1, 64 * BUCKETS, 64 * BUCKETS + 5, 300 * BUCKETS + 4095)


def draw(elements: int, dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(elements).astype(dtype)


def by_hand(name: str, array: np.ndarray) -> np.ndarray:
    """Bucket i sums the elements i, i + 4096, … under signs drawn for the name; small tensors stay whole."""
    if array.size <= WHOLE:
        return array.astype(np.float64)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    # In the same pieces, because a generator of bytes rounds each request up to whole words.
    piece = 64 * BUCKETS
    drawn = [rng.bytes((min(piece, array.size - s) + 7) // 8) for s in range(0, array.size, piece)]
    bits = np.unpackbits(np.frombuffer(b"".join(drawn), np.uint8), count=array.size)
    signed = np.zeros(-(-array.size // BUCKETS) * BUCKETS)
    signed[: array.size] = np.where(bits == 1, array, -array.astype(np.float64))
    return signed.reshape(-1, BUCKETS).sum(axis=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("elements", SIZES)
def test_it_is_the_signed_sum_of_each_bucket(elements: int, dtype: str) -> None:
    array = draw(elements, dtype)
    np.testing.assert_allclose(sketch("w", array), by_hand("w", array), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("elements", SIZES)
def test_a_change_is_sketched_as_the_difference_in_float64(elements: int) -> None:
    after, before = draw(elements, "float32"), draw(elements, "float32", seed=1)
    change = after.astype(np.float64) - before.astype(np.float64)
    assert np.array_equal(sketch("w", after, before), sketch("w", change))


def test_its_size_estimates_the_tensors_own_within_three_deviations() -> None:
    array = draw(1 << 20, "float64")
    assert rms(sketch("w", array), array.size) == pytest.approx(np.sqrt(np.mean(array**2)), rel=3 * 0.022 / 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_comes_through(bad: float) -> None:
    array = draw(1 << 18, "float32")
    array[12345] = bad
    assert not np.isfinite(rms(sketch("w", array), array.size))


def test_a_tensor_of_another_layout_or_dtype_is_read_like_its_copy() -> None:
    array = draw(600 * 400, "float32").reshape(600, 400)
    assert np.array_equal(sketch("w", array.T), sketch("w", array.T.copy()))
    half = array.astype(np.float16)
    assert np.array_equal(sketch("w", half), sketch("w", half.astype(np.float64)))
