"""The best product rate and copy rate that this stack reaches on this device."""

from __future__ import annotations

import math
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened
from detente.workloads.catalogue import find_size

# Squares and the tall and wide products of a transformer's layers; the workload's own largest is added.
_SHAPES = (
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (2048, 768, 3072),
    (512, 3072, 768),
    (256, 2048, 2048),
)
_COPY_ELEMENTS = 1 << 26  # 256 MiB of float32: far beyond the caches
# What later processes time again, beside the workload's own: a shared machine's speed moves by a factor of two within
# one session, and by the peak of a slow minute a row of a fast one is faster than physics.
_AGAIN = ((256, 256, 256), (512, 3072, 768))
_COPY_AGAIN = 1 << 25


# A product that would take longer than this at the best rate so far is left out: on a processor that is slow enough for
# that, a larger one is no faster (torch, one Zen 3 core, GFLOP/s: 80 at 1024^3, 90 at 512 x 3072 x 768, 73 at 2048^3),
# and where it has no unit for a precision a library falls back to code a hundred times slower (bf16 2048^3 takes
# minutes there). The workload's own is what its floor rests on.
_LONGEST_S = 0.15
_LONGEST_OWN_S = 5.0
# Of a smaller product the rate is how long a call takes to start: 64 x 48 x 32 runs at 1 to 4 GFLOP/s where 1024^3 runs
# at 80, and by that rate every larger one would be left out.
_TELLING = 2.0 * 256**3


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``peak``. Rates of synchronised single products, best of five at most, the smallest first; of fewer products
    and a smaller copy in a row's later processes."""
    shapes, elements = (_SHAPES, _COPY_ELEMENTS) if opened.job.full_proof else (_AGAIN, _COPY_AGAIN)
    own = opened.workload.products(find_size(opened.workload, opened.job.cell.size))
    rates: list[list[float]] = []
    for m, k, n in sorted(dict.fromkeys((*shapes, own)), key=lambda shape: shape[0] * shape[1] * shape[2]):
        work = 2.0 * m * k * n
        longest = _LONGEST_OWN_S if (m, k, n) == own else _LONGEST_S
        told = [rate for *shape, rate in rates if 2.0 * math.prod(shape) >= _TELLING]
        if told and work / max(told) > longest:
            continue
        seconds = opened.stack.product_seconds(m, k, n, 5)
        rates.append([m, k, n, work / seconds])
    copy = opened.stack.copy_seconds(elements, 3)
    return {"peak": {"shapes": rates, "copy_bytes_per_s": 8.0 * elements / copy}}
