"""Each exit code of design.md section 4, and the one line that goes with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

TINY = ("--size", "tiny", "--stacks", "torch-eager", "--blocks", "1", "--no-aa", "--no-memory")


def test_json_on_standard_output_and_nothing_else(detente: Any) -> None:
    done = detente("compare", "gemm", *TINY, "--format", "json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == "detente/compare/1"
    assert set(result) == {"schema", "session", "cells", "verdicts"}
    wanted = {
        "workload",
        "stack",
        "contract",
        "device",
        "status",
        "reason",
        "import_s",
        "build_s",
        "first_s",
        "second_s",
        "third_s",
        "steady_s",
        "compile",
        "memory",
        "floor",
        "parity",
        "findings",
        "programs",
    }
    assert wanted <= set(result["cells"][0])
    assert {"events", "seconds", "cache_state"} <= set(result["cells"][0]["compile"])
    assert {"median", "low", "high", "processes"} <= set(result["cells"][0]["steady_s"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("compare", "GPT2"), "did you mean 'gpt2'?"),
        (("compare", "gemm", "--stacks", "JAX"), "did you mean 'jax'?"),
        (("compare", "gpt3"), "did you mean 'gpt2'?"),
        (("compare", "gemm", "--stacks", "torch-eagre"), "did you mean 'torch-eager'?"),
        (("compare", "gemm", "--size", "tinny"), "did you mean 'tiny'?"),
        (("compare", "gemm", "--contract", "gradeint"), "did you mean 'gradient'?"),
        (("compare", "gemm", "--precision", "fp8"), "no precision is called 'fp8'"),
        (("compare", "gemm", "--budget", "soon"), "is no duration"),
        (("compare", "gemm", "--blocks", "0"), "0"),
        (("compare", "gemm", "--budget", "0"), "budget is 0"),
        (("compare", "gemm", "--memory-cap", "0"), "memory cap is 0"),
        (("compare", "gemm", "--seed=-2"), "seed is -2"),
        (("compare", "gemm", "--seed", "18446744073709551615"), "seed is 1.8"),
        (("compare", "gemm", "--stacks", ","), "holds no name"),
        (("compare",), "no workload was named"),
        (("compare", "nothere.py:model"), "nothere.py"),
        (("compare", "gemm", "--resume", "20000101"), "20000101"),
        (("rule", "clock-stops-erly"), "clock-stops-early"),
        (("comprae",), "did you mean 'compare'?"),
        (("report", "--format", "pdf"), "pdf"),
        (("report", "nothere"), "`detente sessions` lists them"),
        # before anything is measured, and not twelve minutes later
        (("compare", "gemm", "--html", ""), "'' names no file"),
        (("compare", "gemm", "--resume", ""), "'' names no session"),
        (("report", ""), "'' names no session"),
        (("audit", ""), "'' names no session"),
        (("export", ""), "'' names no session"),
        (("compare", "gemm", "--html", "nothere/page.html"), "there is no folder nothere"),
        (("explain", "gemm", "jax", "detente", "--html", "nothere/page.html"), "there is no folder nothere"),
    ],
)
def test_usage_is_2_and_names_the_nearest(detente: Any, arguments: tuple[str, ...], says: str) -> None:
    done = detente(*arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.parametrize("group", [(), ("bridge",), ("stacks",)])
def test_a_group_without_its_command_shows_its_help_line_by_line(
    detente: Any, group: tuple[str, ...]
) -> None:
    """`detente` alone was a traceback, and `detente bridge` its help in one line."""
    done = detente(*group)
    assert "Traceback" not in done.stderr and "bug" not in done.stderr
    if group != ("stacks",):  # which lists them by itself
        assert done.returncode == 2 and done.stdout == ""
        assert "\nCommands:\n" in done.stderr and done.stderr.count("Usage:") == 1


def test_usage_errors_are_json_where_json_was_asked_for(detente: Any) -> None:
    done = detente("compare", "gpt3", "--format", "json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "usage" and "gpt2" in error["message"] and error["hint"]


def test_a_store_that_cannot_be_written_is_3(detente: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = detente("compare", "gemm", *TINY, DETENTE_HOME=str(file))
    assert done.returncode == 3, done.stderr
    assert str(file) in done.stderr and "DETENTE_HOME" in done.stderr


def test_where_no_stack_works_compare_ends_with_3(detente: Any, tmp_path: Path) -> None:
    """As `--dry-run` does: a script must not take a page of skipped rows for a measurement."""
    elsewhere = ("compare", "gemm", "--size", "tiny", "--stacks", "torch-xla", "--format", "json")
    done = detente(*elsewhere, DETENTE_HOME=str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert [c["status"] for c in json.loads(done.stdout)["cells"]] == ["skipped"]
    assert "nothing of this can run here" in done.stderr


def test_a_full_disk_is_3_and_names_the_place(detente: Any, home: Path, tmp_path: Path) -> None:
    """The spool is a link to /dev/full: every write is refused as a full disk refuses it."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "detente.db").symlink_to("/dev/full")
    done = detente("compare", "gemm", *TINY, DETENTE_HOME=str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_of_ours_is_4_and_keeps_its_traceback(detente: Any, tmp_path: Path) -> None:
    """A module of ours that cannot be imported is our bug, whatever its cause."""
    package = tmp_path / "broken" / "detente" / "judge"
    done = detente("rule", "P1", PYTHONPATH=_shadow(package) + os.pathsep + os.environ["PYTHONPATH"])
    assert done.returncode == 4, done.stderr
    assert "this is a bug in detente: ZeroDivisionError" in done.stderr
    where = done.stderr.split("the traceback is in ")[1].split(";")[0]
    assert "ZeroDivisionError" in Path(where).read_text()


def _shadow(folder: Path) -> str:
    """A copy of the source in which one module raises."""
    import shutil

    source = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    root = folder.parent.parent
    shutil.copytree(source / "detente", root / "detente")
    (root / "detente" / "judge" / "__init__.py").write_text("1 / 0\n")
    return str(root)


@pytest.mark.matrix
def test_interrupted_is_130(home: Path) -> None:
    """Ctrl-C once: the running process finishes, what is done is kept, and --resume continues."""
    import signal
    import subprocess
    import sys

    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "detente",
            "compare",
            "gemm",
            "--size",
            "tiny",
            "--stacks",
            "torch-eager",
            "--blocks",
            "3",
            "--no-aa",
            "--no-memory",
            "--format",
            "json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "block 1 took" in line:
            child.send_signal(signal.SIGINT)
            break
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    result = json.loads(out)
    done = result["cells"][0]["steady_s"]["processes"]
    assert done in (1, 2)
    again = subprocess.run(
        [
            sys.executable,
            "-m",
            "detente",
            "compare",
            "gemm",
            "--size",
            "tiny",
            "--stacks",
            "torch-eager",
            "--blocks",
            "3",
            "--no-aa",
            "--no-memory",
            "--format",
            "json",
            "--resume",
            result["session"]["id"],
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["cells"][0]["steady_s"]["processes"] == 3
