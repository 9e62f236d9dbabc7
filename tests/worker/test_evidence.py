"""Evidence is measured: for every key that a rule reads, the truth is changed and the key is seen to change.

Some keys were constants once (``gc_disabled`` was written True), some a copy of what they were compared with, some what
the stack said of itself. A key that is not in these tables fails ``test_every_key_of_every_rule_is_in_a_table``.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from detente.judge.rules import RULES
from detente.records.cell import Cell
from detente.records.codec import dumps
from detente.records.contract import CONTRACTS
from detente.records.job import Job

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "evidence"
CONTRACTS_USED = ("train-step", "train-step-sgd", "forward")


def keys_in(name: str) -> list[str]:
    """The keys of a file of truths, read without importing it: it imports a framework."""
    tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
    return [
        d.args[0].value
        for f in tree.body
        if isinstance(f, ast.FunctionDef)
        for d in f.decorator_list
        if isinstance(d, ast.Call)
        and isinstance(d.args[0], ast.Constant)
        and isinstance(d.args[0].value, str)
    ]


TRUTHS = [(name, key) for name in ("of_torch.py", "of_jax.py") for key in keys_in(name)]
# Keys that no probe brings back but the session itself: room and exhibit of the museum, or the test, in which their
# truth is changed.
ELSEWHERE = {
    "samples": "museum:harness:HalfSpeedTimers",
    "window": "museum:window:StopsByCount",
    "window.errors": "museum:window:StopsByCount",
    "replay": "tests/session/test_replay.py",
    "parent": "tests/session/test_replay.py",
    "parity": "museum:function:ErfGelu",
    "processes": "museum:blocks:OnlyOnce",
    "floor": "tests/judge/test_physical_floor.py",
    "memory process": "tests/judge/test_judgement.py",
    "compiled.product_dtypes": "tests/worker/test_compiled_products.py",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    prepared = tmp_path_factory.mktemp("prepared")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment.pop("DETENTE_AFFINITY", None)

    def prepare() -> None:
        for contract in CONTRACTS_USED:
            folder = prepared / contract
            folder.mkdir()
            cell = Cell("ffn", "tiny", "torch-eager", CONTRACTS[contract], "cpu", "prepare")
            job = Job("prepare", cell, 1, str(folder), str(folder), "", threads=1)
            (folder / "job.json").write_text(dumps(job))
            command = [sys.executable, "-m", "detente.worker", str(folder / "job.json")]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=300, env=environment, check=False
            )
            assert '"status": "ok"' in done.stdout or '"status":"ok"' in done.stdout, (
                done.stdout + done.stderr
            )

    @cache
    def run(name: str) -> dict[str, Any]:
        if not list(prepared.iterdir()):
            prepare()
        command = [sys.executable, str(HERE / name), str(prepared)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=580, env=environment, cwd=ROOT, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
        assert lines, done.stderr[-3000:]
        return json.loads(lines[-1].removeprefix("TOLD "))

    return run


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "key"), TRUTHS)
def test_when_the_truth_changes_so_does_the_key(told: Any, name: str, key: str) -> None:
    found = told(name)[key]
    assert "error" not in found, found["error"]
    if key == "threads.busy":
        assert found["changed"] > found["fair"] + 0.01, found
    else:
        assert found["fair"] != found["changed"], found


def test_every_key_of_every_rule_is_in_a_table() -> None:
    """A rule's key may be a whole probe (``observed``) of which the tables change single entries."""
    known = {key for _, key in TRUTHS} | ELSEWHERE.keys()
    read = {key for rule in RULES.values() if rule.check for said in rule.evidence for key in said.split("|")}
    assert read - known == set()


def test_what_is_changed_elsewhere_is_there() -> None:
    from tests.museum.rooms import ROOMS

    for where in ELSEWHERE.values():
        if where.startswith("museum:"):
            _, room, name = where.split(":")
            assert name in ROOMS[room].planted
        else:
            assert (ROOT / where).is_file()
