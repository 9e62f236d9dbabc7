"""Which rows have a reference of their own size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.session import references
from detente.session.needed_memory import reference_bytes, step_bytes
from detente.session.references import proved_instead
from detente.workloads.catalogue import find_size, find_workload


def cell(workload: str, size: str, contract: str = "train-step") -> Cell:
    return Cell(workload, size, "torch-eager", CONTRACTS[contract], "cpu", "torch-eager")


def test_what_a_reference_takes_follows_from_the_region() -> None:
    forward, gradient, step = (
        reference_bytes(cell("llama", "paper", c)) for c in ("forward", "gradient", "train-step")
    )
    assert (gradient, step) == (2 * forward, 4 * forward)
    assert forward >= 8 * 8_030_261_248


def test_a_row_holds_its_own_width() -> None:
    """Weights of bf16 are half of float32's, and a momentum is one moment where AdamW has two."""
    count = 8_030_261_248
    llama = cell("llama", "paper", "forward")
    assert step_bytes(llama) == 4 * count
    narrow = replace(llama, contract=llama.contract.at("bf16-true"))
    assert step_bytes(narrow) == 2 * count and reference_bytes(narrow) == reference_bytes(llama)
    assert step_bytes(cell("llama", "paper", "train-step-sgd")) == 12 * count
    assert step_bytes(cell("llama", "paper")) == 16 * count


@pytest.mark.parametrize(
    ("workload", "size", "cut"),
    [
        ("gpt_neo", "paper", "paper,layers=4"),  # local and global attention
        ("llama", "paper", "paper,layers=2"),
        ("gpt2", "paper,batch=3,sequence=32", "paper,batch=3,layers=2,sequence=32"),
        ("gpt2", "tiny", ""),  # no more than two
        ("resnet50", "paper", ""),  # no layer that repeats
    ],
)
def test_two_of_every_kind_of_layer_stand_for_the_whole(
    workload: str, size: str, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "of_machine", lambda device: 1)
    assert proved_instead(cell(workload, size)) == cut
    if cut:
        found = find_workload(workload)
        assert find_size(found, cut).name == cut
        monkeypatch.setattr(references, "of_machine", lambda device: 2**60)
        assert proved_instead(cell(workload, size)) == ""


def test_where_nobody_knows_what_there_is_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "of_machine", lambda device: None)
    assert proved_instead(cell("llama", "paper")) == ""
