"""`--dry-run` knows the size, the device, the memory and the form that was asked for; it runs nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detente.cli.dry_run import plan_of, told
from detente.records.evidence import Evidence
from detente.records.session import Fingerprint, Process, Session
from detente.session.capturing import capture_programs
from detente.session.devices import absent_reason
from detente.session.forecast import forecast
from detente.session.layout import lay_out
from detente.session.needed_memory import parameters_of
from detente.session.request import Request
from detente.stacks.catalogue import STACKS, find_entry
from detente.store.spool import Spool


def plan(detente: Any, *more: str) -> dict[str, Any]:
    done = detente("compare", "gpt2", "--dry-run", "--format", "json", *more)
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


def test_tiny_and_paper_do_not_cost_the_same(detente: Any) -> None:
    tiny, paper = plan(detente, "--size", "tiny"), plan(detente, "--size", "paper")
    assert paper["seconds"] > 1.5 * tiny["seconds"]
    assert paper["memory"]["reference"] > 1000 * tiny["memory"]["reference"]
    assert paper["memory"]["total"] > 0


@pytest.mark.parametrize("device", ["tpu", "banana"])
def test_a_device_that_no_stack_has_is_not_planned(detente: Any, device: str) -> None:
    if device == "tpu" and list(Path("/dev").glob("accel*")):
        pytest.skip("this machine has one")
    done = detente("compare", "gpt2", "--dry-run", "--device", device)
    assert done.returncode == 3 and "nothing of this can run here" in done.stdout
    assert " runs: " not in done.stdout
    assert plan(detente, "--device", device)["processes"] == 0


def test_a_device_is_known_by_files_and_packages(tmp_path: Path) -> None:
    assert absent_reason(find_entry("torch-eager"), "cpu", tmp_path) == ""
    assert "shows no such device" in absent_reason(find_entry("torch-eager"), "cuda", tmp_path)
    (tmp_path / "accel0").touch()
    assert "torch-xla has" in absent_reason(find_entry("torch-eager"), "tpu", tmp_path)
    assert "PyTorch/XLA runs on cpu and tpu" in absent_reason(find_entry("torch-xla"), "cuda", tmp_path)


def test_as_many_blocks_as_were_asked_for_are_not_a_lower_bound() -> None:
    assert "5 blocks, " in "\n".join(told(plan_of(Request(("gemm",), blocks=5)), "text"))
    assert "5 blocks or more, " in "\n".join(told(plan_of(Request(("gemm",))), "text"))


def test_markdown_is_a_table() -> None:
    lines = told(plan_of(Request(("gemm",), ("torch-eager",))), "md")
    assert lines[0].startswith("| workload |") and lines[1].startswith("| --- |")


def test_what_was_measured_here_is_not_guessed(tmp_path: Path) -> None:
    request = Request(("gemm",), ("torch-eager",), "tiny")
    cells = lay_out(request).cells
    processes = tuple(
        Process(cells[0], "time", i, 0, 0.0, wall, 0.0, Evidence("ok", "done"))
        for i, wall in enumerate((40.0, 11.0, 13.0))
    )
    session = Session("20260101-000000-aaaa", 0.0, (), Fingerprint({}, {}, ""), cells, processes=processes)
    Spool.create(tmp_path, session).close()
    (tmp_path / "20260102-000000-bbbb.jsonl").write_text("no session\n")
    costs = forecast(request, cells, tmp_path)
    assert [(c.first_s, c.later_s, c.source) for c in costs.values()] == [(40.0, 12.0, session.id)] * 2
    assert costs[cells[0].key].blocks_s(5) == 88.0


def test_gpt2_has_124_million_parameters() -> None:
    (cell, *_) = lay_out(Request(("gpt2",), ("torch-eager",), "paper")).cells
    assert parameters_of(cell) == 124_439_808


def test_out_of_the_box_is_a_contract_that_can_be_typed(detente: Any) -> None:
    rows = {c["label"] for c in plan(detente, "--contract", "out-of-the-box")["cells"]}
    assert {"torch-compile-model", "torch-compile", "torch-eager"} <= rows
    assert "torch-compile-model" not in {c["label"] for c in plan(detente)["cells"]}
    near = detente("compare", "gpt2", "--contract", "out-of-box", "--dry-run")
    assert near.returncode == 2 and "did you mean 'out-of-the-box'" in near.stderr


def test_a_stack_that_gives_no_program_is_told_before_anything_is_made(monkeypatch: Any) -> None:
    none = replace(STACKS["torch-eager"], operators=False)
    monkeypatch.setitem(STACKS, "torch-eager", none)
    said: list[Any] = []
    (found,) = capture_programs(Request(("gpt2",), ("torch-eager",), "paper"), said.append)
    assert found.evidence.status == "skipped" and found.process is None and not said
    assert "gives no program away" in found.evidence.reason and "torch-compile" in found.evidence.reason


def test_the_table_says_the_truth_about_who_gives_programs() -> None:
    """A stack that inherits eager's ``programs`` has none to give."""
    torch_eager = pytest.importorskip("detente.stacks.torch_eager")
    for entry in STACKS.values():
        module, _, name = entry.target.partition(":")
        stack = getattr(__import__(module, fromlist=[name]), name)
        running = getattr(stack, "running", None)
        if running is not None and entry.environment == "default":
            inherits = running.programs is torch_eager.TorchRunning.programs
            assert (entry.programs or entry.name.startswith("torch-compile")) is not inherits, entry.name
            # Whoever gives no program lists its operators to a capture.
            assert entry.programs is not entry.operators, entry.name
