"""What the C library would hold of a course of blocks, asked of the C library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from detente.stacks.allocator_replay import Event, held

MB = 2**20


def asked(script: str, keeps: bool) -> list[int]:
    """What ``held`` says in a process whose heap keeps what is freed, or not."""
    variables = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"} if keeps else {}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from detente.stacks.allocator_replay import Event, held\nMB = 2**20\n{script}",
        ],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [int(line) for line in done.stdout.split()]


# One course in a process: of a heap that another one has left, neighbours may be freed together and make larger holes.
HOLES = """
course = [Event(k, 4 * MB) for k in range(8)] + [Event(k, None) for k in range(0, 8, 2)]
course += [Event(100 + k, 5 * MB) for k in range(4)]
print(held(course, {since}))
"""


def test_a_heap_that_keeps_what_is_freed_grows_over_holes_that_are_too_small() -> None:
    """Blocks of 5 MB find holes of 4: nothing that was freed is used again."""
    (whole,) = asked(HOLES.format(since=0), keeps=True)
    (later,) = asked(HOLES.format(since=8), keeps=True)
    assert 52 * MB <= whole < 53 * MB
    # Behind the eighth event only what lives then and what comes counts: all eight lived then.
    assert later == whole


def test_blocks_that_go_back_to_the_system_count_while_they_live() -> None:
    """Eight of 4 MB, then four of them and four of 5."""
    (whole,) = asked(HOLES.format(since=0), keeps=False)
    assert 36 * MB <= whole < 37 * MB


def test_a_hole_that_fits_is_used_again() -> None:
    script = "print(held([Event(1, 8 * MB), Event(2, MB), Event(1, None), Event(3, 4 * MB)], 0))"
    (found,) = asked(script, keeps=True)
    assert 9 * MB <= found < 10 * MB


def test_nobody_writes_to_the_blocks() -> None:
    """A hundred times what a test machine has is refused by nobody, or told as not known: it is never touched."""
    found = held([Event(k, 2**30) for k in range(8)], 0)
    assert found is None or found >= 2**33


@pytest.mark.parametrize("course", [[], [Event(1, 0), Event(1, None)], [Event(1, MB)]])
def test_small_courses(course: list[Event]) -> None:
    found = held(course, 0)
    assert found is None or found == sum(e.size or 0 for e in course)
