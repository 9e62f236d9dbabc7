"""What a step frees is kept for the next one, and the user's own word on the allocator counts more."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from detente.bridge.state import kept
from detente.bridge.state.ground import Ground
from detente.bridge.state.hole import Hole

PROGRAM = """
import resource
import torch
import detente
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
x = torch.randn(131072, 64)
step = detente.compile(model, lambda m, b: m(b).pow(2).mean(), torch.optim.SGD(model.parameters(), lr=0.1),
                       example_batch=x, cache=False, quiet=True, certificate="none")
for _ in range(4):
    float(step(x))
found = []
for _ in range(7):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    float(step(x))
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(found)[3])
"""


def said(program: str, **environ: str) -> str:
    """What a program prints, in a process of its own whose allocator nobody has set."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "DETENTE_KEEP"))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def faults(**environ: str) -> float:
    """Page faults of a step; the median, because a place that was lost is paid for once."""
    return float(said(PROGRAM, **environ).split()[-1])


of_glibc = pytest.mark.skipif(
    kept._glibc() is None, reason="another allocator than glibc's answers, or it was set by hand"
)


@pytest.mark.long
@of_glibc
def test_steps_touch_no_fresh_pages_and_do_where_it_was_declined() -> None:
    # A step computes with some 100 MB in one block: more than the 32 that glibc would keep by itself.
    found = [faults(), faults(DETENTE_KEEP_MEMORY="0"), faults(MALLOC_MMAP_THRESHOLD_="131072")]
    assert found[0] < 1000 and min(found[1:]) > 10_000, found


STORED = """
import torch
import detente
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4)))
x = torch.randn(64, 2048)
step = detente.compile(model, lambda m, b: m(b).pow(2).mean(), torch.optim.AdamW(model.parameters()),
                       example_batch=x, quiet=True, certificate="none")
for _ in range(3):
    float(step(x))
print(step.programs[0].cached, len(step._hole._places))
"""


@of_glibc
def test_the_first_state_of_a_stored_program_does_not_lie_where_its_steps_compute(tmp_path: Any) -> None:
    """Nobody made it while a compiler ran, and the first step did, in its own place: the next one waited half a second
    for that, and computed in a second place for ever."""
    found = [said(STORED, DETENTE_BRIDGE_CACHE=str(tmp_path)).split() for _ in range(2)]
    assert found == [["False", "1"], ["True", "1"]]


AHEAD = """
import torch
import detente
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
x = torch.randn(4096, 512)
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
for hole in (step._hole, None):
    step._hole, done[:] = hole, []
    for _ in range(6):
        last = step(x)
    last.item()
    print(hole is not None, all(done))
"""


@of_glibc
def test_a_large_step_waits_for_the_one_before_where_nobody_looks() -> None:
    """Some 80 MB a step: several under way at once would hold as many blocks."""
    found = said(AHEAD)
    assert found.split() == ["True", "True", "False", "False"], "and without it steps do run ahead"


# In use right before the program is handed over, beside what is in use when nothing runs: a step's block, or none.
BLOCKS = """
import ctypes
import time
import torch
import detente
class Use(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "arena ord sm hblks hblkhd usm fsm uord ford keep".split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Use
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
x = torch.randn(16384, 512)
step = detente.compile(model, lambda m, b: m(b).pow(2).mean(), torch.optim.SGD(model.parameters(), lr=0.1),
                       example_batch=x, cache=False, quiet=True, certificate="none")
for _ in range(3):
    float(step(x))
time.sleep(0.2)
idle = library.mallinfo2().uord
compiled, found = step.programs[0].compiled, []
run = compiled.executable
def looked(*arguments):
    found.append(library.mallinfo2().uord - idle)
    return run(*arguments)
object.__setattr__(compiled, "executable", looked)
for _ in range(40):
    float(step(x))
print(max(found), step._hole._size, step._hole._missed)
"""


@pytest.mark.long
@of_glibc
def test_a_large_step_begins_when_the_block_of_the_one_before_is_free() -> None:
    """A loss is ready before that: without the wait some of forty steps begin with a block of 300 MB in use."""
    found = said(BLOCKS)
    most, size, missed = map(int, found.split())
    assert size > 100 << 20 and not missed
    assert most < size // 2


# With the ground that steps compute on, and with none.
GROUND = """
import ctypes
from detente.bridge.state import hole
from detente.bridge.state.glibc import glibc
from detente.bridge.state.ground import Ground
from detente.bridge.state.kept import settle_down
library = glibc()
class Bare(Ground):
    def lay(self, size):
        pass
assert settle_down(1, 8)
SIZE = 64 << 20
kept = hole.Hole(SIZE, KIND())
"""


def on(ground: str, program: str) -> str:
    return GROUND.replace("KIND", ground) + program


CUSHION = """
step = library.malloc(SIZE + 96)
end = library.malloc(SIZE + 96)         # what is behind the block is not the heap's end
library.free(step)
batch = library.malloc(20 << 20)
print(kept._known(kept._ground.lies(kept._size)))
library.free(batch)
print(kept._known(kept._ground.lies(kept._size)))
"""


@of_glibc
def test_what_is_made_between_steps_lies_elsewhere() -> None:
    """A third of a block: without the cushion it lies where the block was."""
    assert said(on("Ground", CUSHION)).split() == ["True", "True"]
    assert said(on("Bare", CUSHION)).split() == ["False", "True"]


WORN = """
hole.PATIENCE_S = 0.1
places, lost = set(), []
for _ in range(40):
    block = ctypes.c_void_p()
    assert not library.posix_memalign(ctypes.byref(block), 64, SIZE)
    places.add(block.value // SIZE)
    # Of each size that is left over, one that stays: before the block or behind it.
    lost += [library.malloc(n) for n in (24, 40, 56, 72, 88)]
    library.free(block)
    kept.wait()
print(len(places), kept._missed)
"""


@of_glibc
def test_a_place_that_wears_is_made_larger() -> None:
    """Forty steps, whose left-overs are all kept. Without the wall three more places are begun and given up."""
    places, missed = map(int, said(on("Ground", WORN)).split())
    assert places <= 2 and missed == 0  # one that lies across a multiple of its size may count as two
    places, missed = map(int, said(on("Bare", WORN)).split())
    assert places > 3 and missed == 3


PLACES = """
import threading
freed = []
block = lambda: library.malloc(SIZE + 96)
def frees(place):
    freed.append(place)
    library.free(place)
hole.PATIENCE_S = 60
threading.Timer(0.05, frees, (block(),)).start()
kept.wait()
print(len(freed), kept._missed)     # a block that is freed meanwhile
kept.wait()
print(len(freed), kept._missed)     # nothing lies there
hole.PATIENCE_S = 0.01
others = []
for _ in range(4):
    others.append(block())
    kept.wait()                     # somebody keeps the place
    kept.wait()                     # and the next one counts from then on
    print(kept._missed, len(kept._places))
"""


@of_glibc
def test_a_hole_is_waited_for_and_not_for_ever() -> None:
    found = said(on("Ground", PLACES))
    assert found.splitlines() == ["1 0", "1 0", "1 2", "2 3", "3 4", "3 4"]


def test_where_there_is_no_memory_for_a_block_nobody_waits() -> None:
    class Refuses:
        freed: ClassVar = []

        def malloc(self, size: int) -> None:
            return None

        def realloc(self, place: int | None, size: int) -> None:
            return None

        def free(self, place: int) -> None:
            self.freed.append(place)

    hole = Hole(1 << 20, Ground(Refuses()))
    hole.wait()
    assert hole._missed == 0 and set(Refuses.freed) == {0}


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
