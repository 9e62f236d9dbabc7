"""Made-up timed windows: a fair one, and what the rules of the window look for. No figure in them was measured."""

from __future__ import annotations

from dataclasses import replace

from detente.records.evidence import Evidence
from detente.records.sample import Sample
from detente.records.tensor_error import TensorError
from detente.records.window import HandOut, Replay, Window

N = 1_000_000
STATE = (
    TensorError("update", "h.0.attn.weight", 2e-8, 2e-8, 1e-3, N),
    TensorError("update", "h.0.attn.bias_k", 9e-4, 9e-4, 1e-3, 64),
    TensorError("moment", "exp_avg:h.0.attn.weight", 1e-9, 1e-9, 1e-4, N),
    TensorError("moment", "exp_avg:h.0.attn.bias_k", 1e-15, 1e-15, 1e-15, 64),
    TensorError("moment", "step", 0.0, 0.0, 11.0, 1),
)
OUTPUTS = (TensorError("output", "2:logits", 1e-6, 1e-6, 1.0, N),)


def fair_window(evidence: Evidence, region: str = "train-step") -> Evidence:
    """The evidence with a window that its samples fill."""
    moves = region == "train-step"
    hands = (
        (HandOut(2, 3_000_000, 3_000_000), HandOut(4, 3_500_000, 3_500_000))
        if moves
        else (HandOut(1, 500_000, 450_000, 20_000, 3), HandOut(3, 600_000, 500_000, 20_000, 3))
    )
    queue = Sample(9_000_000, 8, 8_000_000)
    return covered(
        replace(
            evidence,
            window=Window(
                proved=11 if moves else 0,
                errors=STATE if moves else OUTPUTS,
                hand_outs=hands,
                replays=(Replay(2, 2, STATE) if moves else Replay(0, 1, OUTPUTS),),
                fresh=None if moves else queue,
                seen=() if moves else (queue, queue),
            ),
        )
    )


def covered(evidence: Evidence) -> Evidence:
    """The parent's clock agrees with the sum of samples and hand-outs."""
    window = evidence.window
    assert window is not None
    parts = [*evidence.samples, *window.hand_outs, *window.seen, *([window.fresh] if window.fresh else [])]
    wall, cpu = sum(p.wall_ns for p in parts), sum(p.cpu_ns for p in parts)
    return replace(evidence, window=replace(window, parent_wall_ns=wall, parent_cpu_ns=cpu))
