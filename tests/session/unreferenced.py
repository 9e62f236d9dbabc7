"""A session on a machine that holds no fp64 reference: prints the result's rows as JSON.

GPT-2 with six tiny layers, on two stacks and on one that leaves all layers behind the second out. The machine's memory
is the one thing that is made up, and only for the question whether a reference fits.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from detente.judge import judge
from detente.records.job import Sampling
from detente.session import references
from detente.session.request import Request
from detente.session.run import run_session
from detente.stacks.torch_eager import TorchEager, TorchRunning

LAYERS = 6
SHALLOW = f"{__file__}:Shallow"


class _ShallowRunning(TorchRunning):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        for block in self.module.transformer.h[2:]:
            block.forward = lambda hidden, *given, **named: hidden  # it holds its weights and does nothing


class Shallow(TorchEager):
    """Right as far as a proof with two layers sees."""

    running = _ShallowRunning


def main(stacks: tuple[str, ...]) -> None:
    references.of_machine = lambda device: 1  # type: ignore[assignment]
    said: list[str] = []
    request = Request(
        ("gpt2",),
        stacks,
        f"tiny,layers={LAYERS}",
        blocks=1,
        aa=False,
        memory=False,
        sampling=Sampling(samples=5, seconds=0.3),
        command=("test",),
    )
    session = run_session(request, lambda event: said.append(event.text))
    result = judge(session)
    rows = [
        {
            "label": c.label,
            "status": c.status,
            "reason": c.reason,
            "function": c.parity and c.parity.same_function,
            "precision": c.parity and c.parity.same_precision,
            "at": c.parity and c.parity.precision_at,
            "void": sorted({f.rule for f in c.findings if f.severity == "void"}),
            "tensors": c.parity and c.parity.tensors,
        }
        for c in result.cells
    ]
    processes = [(p.kind, p.cell.label, p.cell.size, p.cell.contract.precision) for p in session.processes]
    print(json.dumps({"rows": rows, "processes": processes, "said": said}))


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
