"""What each argument and each result of torch_xla's step is: by this another runtime can run the program.

Tensors are known by their identity on the device. Numbers that Python computes ahead of each step (an update's share
that depends on how many steps were taken) reach the program as arguments of their own; they are read at two steps, and
one that changes must be what AdamW's or SGD's own formula gives for both. A program with any other number that changes
cannot be run by anybody else, and says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detente.workloads.workload import OptimizerSettings

SCHEMA = "detente/signature/1"

# Numbers of a step that an optimizer computes on the host, by name: of its settings and the count of steps, this one
# included. torch's optimizers for tensors without a kernel of their own (torch/optim/adamw.py, _single_tensor_adam).
FORMULAS: dict[str, Callable[[OptimizerSettings, float], float]] = {
    "-lr / (1 - beta1^t)": lambda s, t: -s.lr / (1 - s.betas[0] ** t),
    "lr / (1 - beta1^t)": lambda s, t: s.lr / (1 - s.betas[0] ** t),
    "sqrt(1 - beta2^t)": lambda s, t: math.sqrt(1 - s.betas[1] ** t),
    "1 / sqrt(1 - beta2^t)": lambda s, t: 1 / math.sqrt(1 - s.betas[1] ** t),
    "1 - beta1^t": lambda s, t: 1 - s.betas[0] ** t,
    "1 - beta2^t": lambda s, t: 1 - s.betas[1] ** t,
    "t": lambda s, t: t,
}


class Unsigned(Exception):
    """An argument that nobody knows; the text says which."""


Argument = Mapping[str, Any]
# Before the name of an argument that is a tensor of the batch.
BATCH = "batch:"
UNCOUNTED = "its optimizer does not count its steps where it could be read"


def signature(
    arguments: Sequence[Mapping[str, Any]],
    later: Sequence[Mapping[str, Any]],
    results: Sequence[str],
    settings: OptimizerSettings,
    step: float,
) -> bytes:
    """The JSON of a program. ``arguments``: ``dtype`` and ``shape`` of each, and ``name`` (of a tensor) or ``value``;
    ``later``: the same of the next step's program. ``results``: names in order. ``step``: how many steps were taken,
    this one included. Raises Unsigned."""
    rows = signed(arguments, later, settings, step)
    return json.dumps({"schema": SCHEMA, "arguments": rows, "results": list(results)}).encode()


def signed(
    arguments: Sequence[Argument], later: Sequence[Argument], settings: OptimizerSettings, step: float
) -> list[Argument]:
    """Each argument with its ``name``, its ``value``, or the ``formula`` of one that changes. Raises Unsigned."""
    rows: list[Argument] = []
    for at, (one, two) in enumerate(zip(arguments, later, strict=True)):
        row = dict(one)
        if "name" not in row and row["value"] != two.get("value"):
            known = [n for n, f in FORMULAS.items() if _is(f, settings, step, one, two)]
            if not known:
                raise Unsigned(
                    f"argument {at} is a number that changes from step to step ({one['value']:.6g}, then "
                    f"{two.get('value', math.nan):.6g}), and no formula of an optimizer gives it"
                )
            row = {"dtype": one["dtype"], "shape": one["shape"], "formula": known[0]}
        rows.append(row)
    return rows


def number_of(argument: Argument, settings: OptimizerSettings, count: float) -> float:
    """What an argument without a name is in update number ``count``, as the optimizer's host computes it."""
    return argument["value"] if "value" in argument else FORMULAS[argument["formula"]](settings, count)


def _is(
    formula: Callable[[OptimizerSettings, float], float],
    settings: OptimizerSettings,
    step: float,
    one: Mapping[str, Any],
    two: Mapping[str, Any],
) -> bool:
    return all(
        math.isclose(formula(settings, step + later), row["value"], rel_tol=1e-5)
        for later, row in ((0, one), (1, two))
        if "value" in row
    )
