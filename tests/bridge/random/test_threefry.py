"""The torch twin gives jax's own bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detente.bridge.random import keys, threefry

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (0, 4), (70_001,)]
SEEDS = [0, 1, 42, 2**31 - 1]
words = st.integers(0, 2**32 - 1)


def both(seed):
    return jax.random.key(seed, impl="threefry2x32"), threefry.key(seed)


def unsigned(tensor):
    return tensor.numpy().view(np.uint32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_and_uniform_and_bernoulli_are_equal(seed, shape):
    k, t = both(seed)
    assert np.array_equal(jax.random.bits(k, shape), unsigned(threefry.bits(t, shape)))
    assert np.array_equal(jax.random.uniform(k, shape, jnp.float32), threefry.uniform(t, shape).numpy())
    for p in (0.0, 0.1, 1 / 3, 0.5, 0.9, 1.0):
        want = jax.random.bernoulli(k, jnp.float32(p), shape)
        assert np.array_equal(want, threefry.bernoulli(t, p, shape).numpy())


@given(seed=st.integers(0, 2**31 - 1), data=words, count=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_keys_are_equal(seed, data, count):
    k, t = both(seed)
    folded = jax.random.fold_in(k, np.uint32(data))
    assert tuple(int(w) for w in jax.random.key_data(folded)) == threefry.fold_in(t, data)
    pieces = jax.random.key_data(jax.random.split(k, count))
    assert tuple(tuple(int(w) for w in row) for row in pieces) == threefry.split(t, count)


@given(seed=st.integers(0, 1000), low=st.integers(-(2**31), 2**31 - 1), span=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_randint_is_equal(seed, low, span):
    high = min(low + span, 2**31 - 1)
    k, t = both(seed)
    want = jax.random.randint(k, (33,), low, high, jnp.int32)
    assert np.array_equal(np.asarray(want, np.int64), threefry.randint(t, (33,), low, high).numpy())


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_permutation_is_equal_and_a_permutation(count):
    k, t = both(3)
    want = jnp.argsort(jax.random.bits(k, (count,), jnp.uint32), stable=True)
    got = threefry.permutation(t, count).numpy()
    assert np.array_equal(want, got)
    assert sorted(got) == list(range(count))


def test_normal_is_equal_to_a_few_ulp():
    k, t = both(9)
    want, got = np.asarray(jax.random.normal(k, (100_000,))), threefry.normal(t, (100_000,)).numpy()
    assert np.allclose(got, want, rtol=2e-6, atol=1e-9)
    assert abs(got.mean()) < 0.02
    assert abs(got.std() - 1) < 0.02


def test_step_and_call_keys_chain_as_in_torch():
    k = keys.call_key(keys.step_key(7, np.uint32(3)), 11)
    want = threefry.fold_in(threefry.fold_in(threefry.key(7), 3), 11)
    assert tuple(int(w) for w in jax.random.key_data(k)) == want


def test_jax_is_in_its_partitionable_form():
    assert jax.config.jax_threefry_partitionable


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_jax_would_cut_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be"):
        threefry.key(seed)
