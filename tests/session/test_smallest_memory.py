"""The smallest cap under which a row still runs: found to 5 % in six workers, beside that of an empty step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from detente.session.smallest_memory import MOST_WORKERS, WITHIN, Search


@pytest.mark.parametrize("off", [0.75, 0.9, 1.0, 1.1, 1.25, 1.4])
def test_a_plan_that_is_off_by_a_quarter_is_found_within_five_per_cent(off: float) -> None:
    needed = 10**9
    search = Search(int(needed * off))
    while (cap := search.next()) is not None:
        search.tell(cap, cap >= needed)
    assert search.tried <= MOST_WORKERS
    assert search.held is not None and search.failed is not None
    assert search.failed < needed <= search.held <= WITHIN * search.failed * 1.001


def test_what_never_holds_ends() -> None:
    search = Search(100)
    while (cap := search.next()) is not None:
        search.tell(cap, False)
    assert search.tried == MOST_WORKERS and search.held is None


@pytest.mark.long
def test_a_session_finds_it(detente: Any) -> None:
    words = (
        "compare",
        "ffn",
        "--stacks",
        "jax",
        "--size",
        "tiny",
        "--device",
        "cpu",
        "--blocks",
        "1",
        "--no-aa",
    )
    done = detente(*words, "--smallest-memory", "--format", "json")
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    memory = cell["memory"]
    assert cell["status"] == "ok"
    assert 0 < memory["smallest_cap_below"] < memory["smallest_cap"] <= 1.2 * memory["smallest_cap_below"]
    # A process with libraries takes most of it.
    assert 0.5 * memory["smallest_cap"] < memory["smallest_cap_empty"] < 1.3 * memory["smallest_cap"]
