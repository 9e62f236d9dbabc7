"""The memory that states are handed out into: a copy is a copy, whatever it is copied from and to."""

from __future__ import annotations

import os

import numpy as np
import pytest

from detente.worker.buffers import Ahead, Buffers, held_already

STATE = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "part": np.arange(20, dtype=np.float32)[::2],
    "step": np.array(7.0),
    "empty": np.empty((0, 3), np.float32),
}


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[n], wanted[n]) and found[n].dtype == wanted[n].dtype for n in wanted
    )


@pytest.fixture
def file() -> int:
    made = os.memfd_create("test")
    yield made
    os.close(made)


@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_shares_nothing_with_what_was_given_nor_with_the_next(shared: bool, file: int) -> None:
    given = {n: a.copy() for n, a in STATE.items()}
    buffers = Buffers(given, 2, file if shared else -1)
    first = buffers.copy(given)
    given["weight"][:] = -1
    given["step"] = np.array(8.0)
    second, third = buffers.copy(given), buffers.copy(given)
    assert same(first, STATE) and same(second, given) and same(third, given)
    assert not any(np.shares_memory(second[n], third[n]) for n in given if given[n].size)


def test_what_is_given_back_is_written_over_and_nothing_else() -> None:
    buffers = Buffers(STATE, 2)
    kept, lent = buffers.copy(STATE), buffers.copy(STATE)
    buffers.give_back(lent)
    changed = {n: a + 1 for n, a in STATE.items()}
    again = buffers.copy(changed)
    assert same(kept, STATE) and same(again, changed) and np.shares_memory(again["weight"], lent["weight"])


def test_another_shape_dtype_or_name_is_copied_all_the_same() -> None:
    buffers = Buffers(STATE, 1)
    other = {
        "weight": np.ones((4, 3), np.float32),
        "turned": STATE["turned"].astype(np.float32),
        "new": np.ones(3),
        "step": 9,
    }
    found = buffers.copy(other)
    assert found["weight"].shape == (4, 3) and found["turned"].dtype == np.float32
    assert np.array_equal(found["new"], other["new"]) and not np.shares_memory(found["new"], other["new"])
    assert found["step"] == 9


def test_the_sessions_file_grows_to_the_largest_and_is_used_again(file: int) -> None:
    Buffers(STATE, 1, file)
    small = held_already(file)
    large = {"weight": np.ones((512, 512), np.float32)}
    assert same(Buffers(large, 3, file).copy(large), large)
    assert held_already(file) >= 3 * large["weight"].nbytes > small
    grown = held_already(file)
    assert same(Buffers(STATE, 1, file).copy(STATE), STATE) and held_already(file) == grown
    assert held_already(-1) == 0


def test_memory_is_written_ahead_to_its_size_and_no_state_is_lost(file: int) -> None:
    size = (40 << 20) + 5
    Ahead(file, size).wait()
    assert held_already(file) == size
    # Every page is there: what is sparse would be a page fault in the window.
    assert os.fstat(file).st_blocks * 512 >= size
    given = {"weight": np.ones((512, 512), np.float32)}
    kept = Buffers(given, 2, file).copy(given)
    Ahead(file, size).wait()  # once more: what is there is not written over
    assert same(kept, given) and held_already(file) == size


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_memory_that_cannot_be_written_ahead_is_left_to_who_wants_it() -> None:
    read_only = os.open(os.devnull, os.O_RDONLY)
    try:
        Ahead(read_only, 1 << 20).wait()
    finally:
        os.close(read_only)
