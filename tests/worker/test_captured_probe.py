"""Whether weights that a program could hold are read: by loading others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detente.records.captured import constants_allowed
from detente.workloads.narrow import BFLOAT16

WEIGHTS = {
    "large": np.ones((64, 64), np.float32),
    "middle": np.zeros((32, 32), np.float32),
    "small": np.ones(3, np.float32),
    "step": np.array(4, np.int64),
}
BYTES = sum(a.nbytes for a in WEIGHTS.values())


class Row:
    """Its loss is the sum of the tensors that it reads."""

    def __init__(self, reads: tuple[str, ...] = tuple(WEIGHTS), compiles: bool = False) -> None:
        self.reads, self.compiles, self.events = reads, compiles, 0

    def load(self, tensors: Any) -> None:
        self.tensors = tensors
        self.events += self.compiles

    def compiled(self) -> Any:
        return SimpleNamespace(events=self.events)

    def step(self, batch: Any) -> float:
        found = [self.tensors[n] for n in self.reads]
        return float(sum((a["bfloat16"] if a.dtype == BFLOAT16 else a).astype("f8").sum() for a in found))

    def loss(self, handle: float) -> float:
        return handle

    def outputs(self, handle: float) -> dict[str, np.ndarray]:
        return {}


def told(row: Row, constants: int = BYTES, weights: Any = WEIGHTS) -> dict[str, Any]:
    from detente.worker.probes import captured

    opened: Any = SimpleNamespace(
        running=row, weights=weights, placed=[None], counted={"constants_bytes": constants}
    )
    found = captured.probe(opened, ())
    if found:
        assert row.tensors is weights, "what was loaded is put back"
    return found


def test_nothing_is_asked_of_a_program_with_few_constants() -> None:
    row = Row()
    assert told(row, int(constants_allowed(BYTES))) == {} and not hasattr(row, "tensors")


def test_weights_that_are_read_are_no_constants() -> None:
    assert told(Row())["captured"] == {"unread_bytes": 0, "compiled": 0}


@pytest.mark.parametrize("unread", ["large", "middle"])
def test_those_that_change_nothing_are_counted(unread: str) -> None:
    found = told(Row(tuple(n for n in WEIGHTS if n != unread)))["captured"]["unread_bytes"]
    # Of the middle one there is less than may be captured: it is not asked.
    assert found == (WEIGHTS["large"].nbytes if unread == "large" else 0)


def test_a_row_that_is_compiled_anew_for_other_weights_says_so() -> None:
    assert told(Row(compiles=True))["captured"]["compiled"] > 0


def test_narrow_weights_are_replaced_too() -> None:
    narrow = {"large": np.full((64, 64), 0x3F80, "<u2").view(BFLOAT16)}
    assert told(Row(("large",)), weights=narrow)["captured"]["unread_bytes"] == 0
    assert told(Row(()), weights=narrow)["captured"]["unread_bytes"] == 64 * 64 * 2


def test_what_is_not_asked_in_time_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from detente.worker.probes import captured

    monkeypatch.setattr(captured, "_SECONDS", -1.0)
    found = told(Row())["captured"]["unread_bytes"]
    assert found == sum(a.nbytes for a in WEIGHTS.values() if a.dtype.kind == "f")


def test_a_loss_that_is_no_number_tells_nothing() -> None:
    row = Row()
    row.loss = lambda handle: float("nan")  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="nothing can be told"):
        told(row)
