"""A torch DataLoader feeds numpy batches, in order, to whoever asks, and its thread ends with it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from detente.records.fault import UsageFault
from detente.workloads.catalogue import find_workload
from detente.workloads.feed import Feed, Rows, make_loader, stack


def prepared(name: str, count: int = 3) -> list[dict[str, np.ndarray]]:
    workload = find_workload(name)
    return [workload.batch(workload.sizes["tiny"], np.random.default_rng(i)) for i in range(count)]


@pytest.mark.parametrize(("name", "workers"), [("gpt2", 0), ("resnet", 0), ("gemm", 0), ("gpt2", 2)])
def test_the_loader_gives_the_prepared_batches_back(name, workers):
    batches = prepared(name)
    with Feed(make_loader(batches, workers)) as feed:
        for wanted in [*batches, *batches]:  # it starts again at the end
            found = next(feed)
            assert set(found) == set(wanted)
            for entry, array in wanted.items():
                assert type(found[entry]) is np.ndarray
                assert found[entry].dtype == array.dtype
                assert np.array_equal(found[entry], array)


def test_rows_are_a_data_set_that_may_be_shuffled_and_batched_otherwise():
    rows = Rows(prepared("gpt2"))
    loader = DataLoader(rows, batch_size=3, shuffle=True, collate_fn=stack)
    seen = np.concatenate([batch["input_ids"] for batch in loader])
    assert seen.shape == (6, 16)
    assert {r.tobytes() for r in seen} == {rows[i]["input_ids"].tobytes() for i in range(6)}
    with pytest.raises(IndexError):
        rows[6]


def test_entries_that_disagree_about_rows_are_refused():
    with pytest.raises(UsageFault, match="x has 2, y has 3"):
        Rows([{"x": np.zeros((2, 1)), "y": np.zeros(3)}])
    with pytest.raises(UsageFault, match="scale has 0"):
        Rows([{"scale": np.float32(1)}])


def test_what_the_loader_raises_reaches_the_reader():
    def broken():
        yield {"x": np.zeros(1)}
        raise OSError("the disk is gone")

    with Feed(broken()) as feed:
        next(feed)
        for _ in range(2):  # again, not a wait without end
            with pytest.raises(OSError, match="the disk is gone"):
                next(feed)


def test_a_worker_that_dies_is_an_error_not_a_wait():
    with Feed(make_loader(prepared("gpt2"), 1)) as feed:
        next(feed)
        (worker,) = multiprocessing.active_children()
        worker.kill()
        with pytest.raises(RuntimeError, match=r"worker .*exited unexpectedly"):
            while True:
                next(feed)
    assert not multiprocessing.active_children()


def test_batches_for_a_gpu_wait_in_page_locked_memory():
    if not torch.cuda.is_available():
        pytest.skip("page-locked memory needs a GPU that this torch can reach")
    batches = prepared("gpt2")
    with Feed(make_loader(batches, pin=True)) as feed:
        found = next(feed)
    assert found["input_ids"].is_pinned()
    assert np.array_equal(found["input_ids"].numpy(), batches[0]["input_ids"])


def test_an_empty_loader_is_an_error_not_a_wait():
    with Feed([]) as feed, pytest.raises(UsageFault, match="empty"):
        next(feed)


def test_leaving_ends_the_thread_even_when_the_queue_is_full():
    with Feed(make_loader(prepared("gpt2")), ahead=1) as feed:
        next(feed)
    assert "detente-feed" not in {t.name for t in threading.enumerate()}
    with pytest.raises(RuntimeError, match="inside its `with`"):
        next(feed)


def test_it_feeds_jax():
    """JAX computes on what a torch DataLoader gives, in one process, with the values of the prepared batch."""
    code = """
import jax, jax.numpy as jnp, numpy as np
from detente.workloads.catalogue import find_workload
from detente.workloads.feed import Feed, make_loader
w = find_workload("gemm")
batches = [w.batch(w.sizes["tiny"], np.random.default_rng(i)) for i in range(2)]
total = jax.jit(lambda b: jnp.vdot(b["x"], b["x"]))
with Feed(make_loader(batches)) as feed:
    for i in range(4):
        found, wanted = total(jax.device_put(next(feed))), np.vdot(batches[i % 2]["x"], batches[i % 2]["x"])
        assert abs(float(found) - wanted) < 1e-4 * wanted, (found, wanted)
print("fed")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "fed", done.stderr
