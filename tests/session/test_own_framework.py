"""A user's stack of a framework that is new to us: planned, proved and timed without an edit of ours."""

from __future__ import annotations

from pathlib import Path

from detente.session.layout import lay_out
from detente.session.request import Request
from detente.session.run import run_session

NUMPY = f"{Path(__file__).with_name('own_framework.py')}:NumPy"


def test_it_is_planned_where_it_has_a_definition() -> None:
    layout = lay_out(Request(("gemm", "ffn"), (NUMPY,), size="tiny", aa=False))
    (why,) = layout.skipped.values()
    assert why == "ffn has no definition in numpy"
    assert [c.workload for c in layout.runnable()] == ["gemm"]


def test_it_is_proved_and_timed() -> None:
    """Against the reference of torch-eager, in fp64 and at the precision that is timed."""
    session = run_session(
        Request(("gemm",), (NUMPY,), size="tiny", blocks=1, aa=False, memory=False), lambda event: None
    )
    found = {p.kind: p.evidence for p in session.processes}
    assert {k: (e.status, e.reason) for k, e in found.items()} == {"prove": ("ok", ""), "time": ("ok", "")}
    assert {(e.kind, e.name) for e in found["prove"].errors} >= {("loss", "1"), ("gradient", "weight")}
    # The weights do not move in this contract: an update of 0 has no size to be relative to.
    far = [e for e in found["prove"].errors if e.err > 1e-9 * max(e.rms, 1e-9)]
    assert not far
    assert found["time"].samples
