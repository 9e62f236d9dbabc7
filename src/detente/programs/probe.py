"""The ``program`` key of the evidence, for a worker: plain JSON, numpy and the standard library at most."""

from __future__ import annotations

from typing import Any

from detente.programs.count import count_program


def program_probe(data: bytes, form: str) -> dict[str, Any]:
    """What the audit reads of one captured program (``form``: ``hlo``, ``hlo-optimised`` or ``stablehlo``).

    ``flops`` is a lower bound where ``unknown_loops`` is not 0. ``alias_bytes`` is what the program itself says; a
    stack that donates at run time (torch_xla) tells it in its facts. Raises ProgramError for unreadable bytes.
    """
    c = count_program(data, form)
    return {
        "flops": c.flops,
        "unknown_loops": c.unknown_loops,
        "products": c.products,
        "constants_bytes": c.constants_bytes,
        "large_constants": list(c.large_constants),
        "argument_bytes": c.argument_bytes,
        "alias_bytes": c.alias_bytes,
        "output_bytes": c.output_bytes,
        "dtypes": c.dtypes,
        "product_dtypes": c.product_dtypes,
        "product_flops": c.product_flops,
        "rng_ops": c.rng_ops,
        "custom_calls": c.custom_calls,
        "norms": c.norms,
        "narrow_sums": c.narrow_sums,
        "operations": c.operations,
        "lines": c.lines,
        "hash": c.hash,
    }
