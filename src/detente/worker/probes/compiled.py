"""What the compiler made of the products: it may compute them wider than it was asked to."""

from __future__ import annotations

from typing import Any

from detente.programs.count import count_program
from detente.records.precision import PRECISIONS
from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``compiled``: ``product_dtypes`` and ``product_flops`` of the optimised program. Asked where the contract's
    products are narrow: reading the program costs a second, and nothing widens a float32."""
    if not PRECISIONS[opened.job.cell.contract.precision].narrow_products:
        return {}
    for capture in opened.captures:
        if capture.form == "hlo-optimised":
            c = count_program(capture.data, capture.form)
            return {"compiled": {"product_dtypes": c.product_dtypes, "product_flops": c.product_flops}}
    return {}
