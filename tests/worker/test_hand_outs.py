"""What a stack gives when it is asked for results runs its code no more behind the copy, and takes no allowance of its
own choosing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detente.records.job import Sampling
from detente.worker.buffers import Buffers, numbers
from detente.worker.reference import make_reference, state_trace
from detente.worker.window import Rotation, Window
from tests.worker.worked_time import Worked, read_work

SAMPLING = Sampling(block_s=0.002, samples=12, least=5, seconds=0.5)
STEP_NS, SLOW_NS = 500_000, 20_000_000


CLOCK = Worked()


@pytest.fixture(autouse=True)
def worked(monkeypatch: pytest.MonkeyPatch) -> None:
    read_work(monkeypatch, CLOCK)


class Later:
    """No array until somebody converts it, which is work."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        CLOCK.work(SLOW_NS)
        return self.array


class Element:
    """A number that somebody makes of it."""

    def __init__(self, made: list[int]) -> None:
        self.made = made

    def __float__(self) -> float:
        self.made.append(1)
        return 1.5


class Odd(np.ndarray):
    """Numpy asks its kind how it is to be copied."""

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        raise AssertionError(f"asked for {function}")


class Steps:
    """What it hands out is ``wrap`` of the number of its steps."""

    def __init__(self, wrap: Any) -> None:
        self.wrap, self.count = wrap, 0

    def step(self, batch: Any) -> Any:
        self.count += 1
        CLOCK.work(STEP_NS)
        return self.count

    def synchronise(self, *handles: Any) -> None: ...

    def place(self, batch: Any) -> Any:
        return batch

    def loss(self, handle: Any) -> float:
        return float(handle)

    def outputs(self, handle: Any) -> dict[str, Any]:
        return {"y": self.wrap(np.full(3, 1.0 * handle))}

    def state(self) -> dict[str, Any]:
        return {"x": self.wrap(np.full(3, 1.0 * self.count))}


def taken(running: Any, moves: bool = True) -> Any:
    taking = Window(running, Rotation([0, 1, 2, 3]), 8, 5e-4, SAMPLING, (lambda: None, lambda: None))
    if not moves:
        return taking.of_outputs([])
    taking.make_room(hold=True)
    return taking.of_state(3)


@pytest.mark.long
def test_steps_on_fresh_batches_lie_between_two_stretches_and_in_turns_with_seen_ones() -> None:
    class Noting(Steps):
        def __init__(self) -> None:
            super().__init__(lambda a: a)
            self.batches: list[Any] = []

        def place(self, batch: Any) -> Any:
            return batch

        def step(self, batch: Any) -> Any:
            self.batches.append(batch)
            return super().step(batch)

    for _ in range(5):
        running = Noting()
        taking = Window(running, Rotation([0, 1, 2, 3]), 8, 5e-4, SAMPLING, (lambda: None, lambda: None))
        taking.make_room(hold=True)
        fresh: Any = ["a", "b", "c"]
        found = taking.of_state(3, fresh, [0, 1, 2, 3])
        first = running.batches.index("a")
        turns = running.batches[first - 1 : first + 5]
        assert turns[1::2] == fresh and set(turns[::2]) <= {0, 1, 2, 3}
        assert [b for b in running.batches if isinstance(b, str)] == fresh
        assert found.fresh is not None and found.fresh.steps == 3 and sum(s.steps for s in found.seen) == 3
        assert found.singly is not None and all(one.steps == 1 for one in found.singly)
        # No stretch holds one of them: from its state before to the one behind it are its own steps.
        for stretch in found.stretches:
            assert stretch.after["x"][0] - stretch.before["x"][0] == stretch.steps


@pytest.mark.parametrize("moves", [True, False])
def test_what_is_computed_in_the_copy_is_no_copying(moves: bool) -> None:
    """It was subtracted twenty times, so that any work was allowed there."""
    lazy, plain = taken(Steps(Later), moves), taken(Steps(lambda a: a), moves)
    assert {h.wall_ns for h in lazy.hand_outs} == {SLOW_NS} and {h.wall_ns for h in plain.hand_outs} == {0}
    # Nothing of the stack's is in what a copy takes (1: that nobody timed it would be 0).
    assert {h.copy_ns for h in lazy.hand_outs} == {h.copy_ns for h in plain.hand_outs} == {1 if moves else 0}


def test_an_object_is_a_number_when_it_is_copied_and_not_later() -> None:
    made: list[int] = []
    objects = np.array([Element(made), Element(made)], dtype=object)
    kept = Buffers({"x": objects}, 2).copy({"x": objects})["x"]
    assert kept.dtype == np.float64 and kept.tolist() == [1.5, 1.5]
    asked = len(made)
    assert float(np.square(kept).sum()) == 4.5 and len(made) == asked


def test_a_kind_of_array_of_the_stacks_is_an_array_of_ours() -> None:
    odd = np.arange(4.0).view(Odd)
    room = Buffers({"x": np.zeros(4)}, 2)
    kept = room.copy({"x": odd})["x"]
    assert type(kept) is np.ndarray and kept.tolist() == [0, 1, 2, 3]
    assert type(numbers(odd)) is np.ndarray


def test_the_loss_of_a_stretch_is_that_of_its_step() -> None:
    running = Steps(lambda a: a)
    found = taken(running)
    assert found.loss == 3.0 and len(found.stretches) == 3
    for stretch in found.stretches:
        # The count before it, and how many steps later its number is.
        assert stretch.loss == stretch.before["x"][0] + stretch.at + 1 and 0 <= stretch.at < stretch.steps


def test_nothing_is_added_to_a_state() -> None:
    """32 MB of zeros, a moment of nothing, were passed over, and reading them made room for a stretch's work."""
    state = {"w": np.ones(4), "exp_avg:w": np.ones(4), "b": np.ones(2), "step": np.array(3.0)}
    before = {n: np.zeros_like(a) for n, a in state.items()}
    reference = make_reference(state_trace(before, state, frozenset({"w", "b"})))
    parts = {(n, a.size, 8) for n, a in state.items()}
    assert reference.strangers(parts) == ()
    # Of a parameter that no gradient reaches torch has no moment, and others have zeros.
    assert reference.strangers({("exp_avg:b", 2, 4)}) == ()
    odd = [("padding:0", 8_000_000, 4), ("exp_avg:b", 8_000_000, 4), ("scratch:b", 2, 4), ("more", 4, 4)]
    odd += [("w", 5, 4), ("w", 4, 4096), ("exp_avg:w", 5, 4)]
    for part in odd:
        (told,) = reference.strangers({part})
        assert told.err == float("inf") and told.name.startswith(part[0])
    padded = state | {"padding:0": np.zeros(9), "exp_avg:b": np.zeros(2)}
    errors = reference.errors(state_trace(before, padded, frozenset({"w", "b"})))
    assert {e.name for e in errors if e.err} == {"padding:0"}


class Remembers(Steps):
    """Computes every batch that lies on the device in its next step, and looks it up ever after."""

    def __init__(self) -> None:
        super().__init__(lambda a: a)
        self.placed: list[Any] = [0, 1, 2, 3]
        self.known: set[Any] = set()

    def place(self, batch: Any) -> Any:
        self.placed.append(len(self.placed))
        return self.placed[-1]

    def step(self, batch: Any) -> Any:
        for _ in set(self.placed) - self.known:
            super().step(batch)
        self.known |= set(self.placed)
        return batch


def test_what_lies_on_the_device_before_the_window_is_not_what_is_fresh() -> None:
    running = Remembers()
    sampling = Sampling(block_s=0.0, samples=12, least=5, seconds=0.5)
    taking = Window(running, Rotation([0, 1, 2, 3]), 8, 5e-4, sampling, (lambda: None, lambda: None))
    fresh = [{"x": np.zeros(2)}] * 8
    found = taking.of_outputs(fresh, fresh)
    assert found.fresh is not None and len(found.seen) == 2
    # Four that rotate are known from the first queue on, and none of those that are placed before the fresh one.
    assert found.fresh.wall_ns == (1 + 8 + 8) * STEP_NS and found.seen[1].wall_ns == 0
    assert sum(s.wall_ns for s in (*found.samples, found.seen[0])) == 4 * STEP_NS
