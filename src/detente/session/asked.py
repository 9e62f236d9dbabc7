"""What a session was asked for, as its fingerprint holds it: enough to judge it on any machine."""

from __future__ import annotations

from typing import Any

from detente.records.cell import Cell
from detente.records.codec import to_json
from detente.records.precision import PRECISIONS
from detente.session.edited import digests
from detente.session.fingerprint import OWN_FILES
from detente.session.layout import Layout
from detente.session.request import Request
from detente.session.workers import threads_of
from detente.workloads.catalogue import find_size, find_workload


def settings_of(request: Request, layout: Layout) -> dict[str, Any]:
    """What the session was asked for, and the plain numbers of its workloads, so that it can be judged anywhere;
    and what the user's own files are now."""
    asked = {k: v for k, v in to_json(request).items() if k not in ("command", "limits")}
    own = digests(layout.cells)
    return {
        **asked,
        "threads": threads_of(request),
        "workloads": {c.group: _costs(c) for c in layout.cells},
        **({OWN_FILES: own} if own else {}),
    }


def _costs(cell: Cell) -> dict[str, Any]:
    workload = find_workload(cell.workload)
    size = find_size(workload, cell.size)
    region = cell.contract.region
    precision = PRECISIONS[cell.contract.precision]
    activations = 2 if precision.narrow_products else 4
    # The traffic of an update depends on the optimizer: SGD passes over its state fewer times than AdamW.
    traffic = cell.contract.name if cell.contract.optimizer == "sgd" else region
    flops = workload.flops(size, region)
    least = workload.least_flops(size, region) if workload.least_flops else flops
    return {
        "flops": flops,
        **({"least_flops": least} if least < flops else {}),
        "bytes": workload.bytes(size, traffic, precision.width, activations),
        "product": list(workload.products(size)),
        "dims": dict(size.dims),
    }
