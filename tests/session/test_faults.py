"""Faults of a worker: one clear line each, the right exit code, and nothing finished is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

FAULTY = "tests/session/faulty_stacks.py:"
QUICK = ("--size", "tiny", "--blocks", "1", "--no-aa", "--no-memory", "--format", "json")


def compare(
    detente: Any, *stacks: str, workload: str = "gemm", more: tuple[str, ...] = (), **environment: str
) -> tuple[int, dict[str, Any], str]:
    names = ",".join(FAULTY + s if s[0].isupper() else s for s in stacks)
    done = detente("compare", workload, "--stacks", names, *QUICK, *more, **environment)
    return done.returncode, json.loads(done.stdout), done.stderr


def cell(result: dict[str, Any], label: str) -> dict[str, Any]:
    return next(c for c in result["cells"] if c["label"] == label)


# Each beside torch-eager in one session: (status, what the reason says).
WRONG = {
    "Killed": ("failed", "killed by SIGKILL in phase 'first'"),
    "KilledWithChildren": ("failed", "killed by SIGKILL"),
    "Raising": ("failed", "RuntimeError: the planted error"),
    "Nan": ("void", "not finite"),
    "Wrong": ("void", "gradient weight"),
}


@pytest.fixture(scope="module")
def faulty(detente: Any) -> tuple[int, dict[str, Any], str]:
    return compare(detente, "torch-eager", *WRONG)


@pytest.mark.parametrize("stack", WRONG)
def test_a_cell_that_goes_wrong_says_so(faulty: tuple[int, dict[str, Any], str], stack: str) -> None:
    status, says = WRONG[stack]
    bad = cell(faulty[1], stack)
    assert bad["status"] == status, bad["reason"]
    assert says in bad["reason"], bad["reason"]


def test_the_others_are_kept(faulty: tuple[int, dict[str, Any], str]) -> None:
    code, result, errors = faulty
    good = cell(result, "torch-eager")
    assert good["status"] == "ok" and good["steady_s"]["processes"] == 1, good["reason"]
    assert code == 1  # a void or failed cell that was named
    assert all(v["word"] == "VOID" and v["ratio"] is None for v in result["verdicts"])
    assert "Traceback" not in errors


def test_out_of_memory_and_what_cannot_run_here_are_results(detente: Any) -> None:
    """Each with its reason, and neither is an error."""
    code, result, errors = compare(detente, "torch-eager", "Greedy", "Absent")
    bad, good, absent = (cell(result, label) for label in ("Greedy", "torch-eager", "Absent"))
    assert bad["status"] == "oom" and "memory" in bad["reason"], bad["reason"]
    assert good["status"] == "ok" and code == 0, good["reason"]
    assert absent["status"] == "skipped" and "this device has no such unit" in absent["reason"], absent
    assert "Traceback" not in errors


def test_a_parity_failure_names_the_first_differing_tensor(faulty: tuple[int, dict[str, Any], str]) -> None:
    parity = cell(faulty[1], "Wrong")["parity"]
    assert parity["same_precision"] == "failed"
    assert (parity["worst"]["kind"], parity["worst"]["name"]) == ("gradient", "weight")


def test_a_worker_that_hangs_is_killed_by_the_phase_limit(detente: Any) -> None:
    code, result, _ = compare(detente, "torch-eager", "Hanging", DETENTE_PHASE_LIMIT="first=2")
    assert code == 1
    assert "no progress in phase 'first' for 2 s" in cell(result, "Hanging")["reason"]


def test_a_killed_worker_takes_its_children_with_it(faulty: tuple[int, dict[str, Any], str]) -> None:
    assert cell(faulty[1], "KilledWithChildren")["status"] == "failed"
    left = subprocess.run(
        ["pgrep", "-f", "detente-orphan"], capture_output=True, text=True, check=False
    ).stdout
    assert left.strip() == ""


@pytest.mark.matrix
def test_a_worker_killed_while_inductor_compiles_leaves_no_compiler(detente: Any, home: Path) -> None:
    note = home / "compile-processes.json"
    note.unlink(missing_ok=True)
    # A product alone is a library call; the feed-forward block has something to fuse, and so to compile.
    code, result, _ = compare(detente, "torch-eager", "KilledWhileCompiling", workload="ffn")
    bad = cell(result, "KilledWhileCompiling")
    assert (code, bad["status"]) == (1, "failed"), bad
    assert "killed by SIGKILL" in bad["reason"]
    started = json.loads(note.read_text())
    assert started, "no compile process was seen"
    assert [pid for pid in started if psutil.pid_exists(pid)] == []
    assert cell(result, "torch-eager")["status"] == "ok"


def test_without_a_compiler_torch_compile_is_skipped_with_what_to_install(
    detente: Any, tmp_path: Path
) -> None:
    """A PATH with everything but C++ compilers, as on a machine that has none."""
    for name in ("sh", "env", "python3", "ldconfig", "uname", "nproc"):
        where = shutil.which(name)
        if where:
            (tmp_path / name).symlink_to(where)
    code, result, _ = compare(detente, "torch-eager", "torch-compile", PATH=str(tmp_path))
    skipped = cell(result, "torch-compile")
    assert (code, skipped["status"]) == (0, "skipped"), skipped
    assert "needs a C++ compiler" in skipped["reason"] and "apt install g++" in skipped["reason"]
    assert cell(result, "torch-eager")["status"] == "ok"


@pytest.mark.usefixtures("faulty")  # what it loads was made without a cap
def test_a_memory_cap_makes_out_of_memory_a_result(detente: Any) -> None:
    """RLIMIT_DATA of 40 MiB: the framework itself does not fit."""
    code, result, _ = compare(detente, "torch-eager", more=("--memory-cap", "40M"))
    assert (code, cell(result, "torch-eager")["status"]) == (0, "oom")


def test_the_memory_cap_holds_for_what_makes_the_reference(detente: Any, tmp_path: Path) -> None:
    """In a home where nothing is prepared yet; nothing can be measured then, and it says why."""
    done = detente(
        "compare",
        "gemm",
        "--stacks",
        "torch-eager",
        *QUICK,
        "--memory-cap",
        "40M",
        DETENTE_HOME=str(tmp_path),
    )
    said = json.loads(done.stdout)["error"]["message"]
    assert done.returncode != 0 and "the reference cannot be made" in said and "out of memory" in said, said


def test_where_its_memory_is_measured_a_row_trains_as_elsewhere(detente: Any) -> None:
    """It was proved by its other processes, and had the smallest figure of all."""
    more = ("--contract", "train-step", "--memory")
    code, result, _ = compare(
        detente, "torch-eager", "jax", "LeanWhereItIsLookedAt", workload="ffn", more=more
    )
    bad, *good = (cell(result, n) for n in ("LeanWhereItIsLookedAt", "torch-eager", "jax"))
    assert bad["status"] == "void" and code == 1, bad["reason"]
    assert "where its memory was measured it computed something else: loss 2" in bad["reason"], bad["reason"]
    for row in good:
        assert row["status"] == "ok" and row["memory"]["process_peak"] > 0, row["reason"]


@pytest.mark.long
def test_the_proofs_of_a_session_are_for_the_sessions_behind_it_what_they_were(
    detente: Any, tmp_path: Path
) -> None:
    """A row wrote into the cache that its rival is another function: void in every later session."""
    home = {"DETENTE_HOME": str(tmp_path / "home")}
    code, result, errors = compare(detente, "torch-eager", "WritesItsRivalsProof", **home)
    assert code == 0 and cell(result, "torch-eager")["status"] == "ok", errors
    assert "the cached proofs of" in errors and "are put back" in errors, errors
    code, result, errors = compare(detente, "torch-eager", **home)
    again = cell(result, "torch-eager")
    assert (code, again["status"]) == (0, "ok") and "put back" not in errors, (again["reason"], errors)
