"""What a step frees is kept for the next one, and the user's own word on the allocator counts more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from detente.bridge.state import kept

PROGRAM = """
import resource
import torch
import detente
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
x = torch.randn(16384, 512)
step = detente.compile(model, lambda m, b: m(b).pow(2).mean(), torch.optim.SGD(model.parameters(), lr=0.1),
                       example_batch=x, cache=False, quiet=True)
for _ in range(4):
    float(step(x))
found = []
for _ in range(7):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    float(step(x))
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(found)[3])
"""


def faults(**environ: str) -> float:
    """Page faults of a step, in a process of its own; the median, because a step that begins before the last one's
    block was freed takes a second one, once."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "DETENTE_KEEP"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.split()[-1])


@pytest.mark.skipif(
    kept._glibc() is None, reason="another allocator than glibc's answers, or it was set by hand"
)
def test_steps_touch_no_fresh_pages_and_do_where_it_was_declined() -> None:
    # A step computes with some 100 MB in one block: more than the 32 that glibc would keep by itself.
    found = [faults(), faults(DETENTE_KEEP_MEMORY="0"), faults(MALLOC_MMAP_THRESHOLD_="131072")]
    assert found[0] < 1000 and min(found[1:]) > 10_000, found


AHEAD = """
import torch
import detente
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
x = torch.randn(16384, 512)
step = detente.compile(model, lambda m, b: m(b).pow(2).mean(), torch.optim.SGD(model.parameters(), lr=0.1),
                       example_batch=x, cache=False, quiet=True, certificate="none")
for _ in range(2):
    step(x).item()
compiled, done = step.programs[0].compiled, []
run = compiled.executable
def looked(*arguments):
    done.append(step._last.is_ready())  # when this step is handed over, is the one before at its end?
    return run(*arguments)
object.__setattr__(compiled, "executable", looked)
for waits in (step._one_at_a_time, False):
    step._one_at_a_time, done[:] = waits, []
    for _ in range(6):
        last = step(x)
    last.item()
    print(waits, all(done))
"""


@pytest.mark.skipif(
    kept._glibc() is None, reason="another allocator than glibc's answers, or it was set by hand"
)
def test_a_large_step_waits_for_the_one_before_where_nobody_looks() -> None:
    """Some 300 MB a step: several under way at once would hold as many blocks."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "DETENTE_KEEP"))}
    done = subprocess.run(
        [sys.executable, "-c", AHEAD], env=clean, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["True", "True", "False", "False"], "and without it steps do run ahead"


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({}, ""),
        ({"MALLOC_ARENA_MAX": "4"}, "MALLOC_ARENA_MAX"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, "GLIBC_TUNABLES"),
        ({"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}, ""),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, "LD_PRELOAD"),
        ({"LD_PRELOAD": "/usr/lib/libfaketime.so"}, ""),
        ({"DETENTE_KEEP_MEMORY": "0"}, "DETENTE_KEEP_MEMORY"),
        ({"DETENTE_KEEP_MEMORY": "1"}, ""),
    ],
)
def test_what_the_user_said_of_the_allocator_counts(environ: dict[str, str], word: str) -> None:
    assert kept.decided(environ) == word


def test_a_step_whose_memory_is_scarce_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to = []

    class Libc:
        def mallopt(self, key: int, value: int) -> int:
            set_to.append((key, value))
            return 1

    monkeypatch.setattr(kept, "_glibc", Libc)
    assert not kept.settle_down(temporary=2 << 30, available=15 << 30) and not set_to
    assert kept.settle_down(temporary=2 << 30, available=16 << 30) and len(set_to) == 2
