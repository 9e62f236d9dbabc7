"""What a row and its fp64 reference hold at least, from the number of parameters: known before anything is planned."""

from __future__ import annotations

from detente.records.cell import Cell
from detente.records.contract import Contract
from detente.records.precision import PRECISIONS
from detente.session.known_plan import known_plan
from detente.workloads.catalogue import find_size, find_workload

# Activations, and tensors on their way to the host, beside the copies of a reference: a judgement, not a measurement.
_BESIDE = 1.25


def parameters_of(cell: Cell) -> int:
    """How many elements the workload trains; 0 where nobody knows."""
    workload = find_workload(cell.workload)
    return workload.parameters(find_size(workload, cell.size))


def step_bytes(cell: Cell) -> int:
    """What one process of a row holds at least, activations not counted."""
    return parameters_of(cell) * PRECISIONS[cell.contract.precision].width * _copies(cell.contract)


def kept_bytes(cell: Cell) -> int:
    """What it holds from step to step: weights, and what the optimizer keeps of each."""
    return parameters_of(cell) * PRECISIONS[cell.contract.precision].width * (1 + cell.contract.moments)


def reference_bytes(cell: Cell) -> int:
    """What the process that makes a row's reference will hold at least; 0 where nobody knows how large the model is.
    Of a row that was planned it is the plan at the reference's width."""
    exact, own = PRECISIONS["fp64"].width, PRECISIONS[cell.contract.precision].width
    copies = parameters_of(cell) * exact * _copies(cell.contract)
    return int(max(copies * _BESIDE, exact / own * known_plan(cell).get("planned_peak", 0)))


def _copies(contract: Contract) -> int:
    """Of the model: its weights, their gradients, and what the optimizer keeps of each."""
    return 1 + (contract.region != "forward") + contract.moments
