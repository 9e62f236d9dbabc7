"""Proofs run beside each other before anything is timed, and an interruption reaches all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("proved_beside.py")


def proved(home: Path, presses: int) -> dict[str, Any]:
    import os

    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(presses)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "DETENTE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.matrix
def test_proofs_overlap_and_no_timed_process_overlaps_anything(tmp_path: Path) -> None:
    found = proved(tmp_path, 0)
    spans = [(p["kind"], p["began"], p["began"] + p["wall"]) for p in found["processes"]]
    proofs = [s for s in spans if s[0] == "prove"]
    assert [p["status"] for p in found["processes"]] == ["ok"] * 4, found  # jax-scan has no layers here
    assert len(proofs) == 2
    for kind, began, _ in spans:
        if kind == "time":
            others = [s for s in spans if s[1] < began]
            assert all(end <= began for _, _, end in others), spans
    if found["cores"] < 2:
        pytest.skip("one core: proofs run one after the other here")
    (_, a, a_end), (_, b, b_end) = proofs
    assert max(a, b) < min(a_end, b_end), proofs


@pytest.mark.parametrize(("presses", "kept"), [(1, "what ran"), (2, "nothing")])
def test_ctrl_c_reaches_every_proof(tmp_path: Path, presses: int, kept: str) -> None:
    found = proved(tmp_path, presses)
    assert found["note"] == "interrupted"
    kinds = [p["kind"] for p in found["processes"]]
    # Once: the proof that had started is finished and kept, none begins. Twice: it is killed and leaves no trace.
    assert kinds == (["prove"] if kept == "what ran" else []), found
