"""What the extension holds besides products, by the names under which a program calls it, and how a lowering does
so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from detente.bridge.kernels.passes import UPDATE
from detente.bridge.kernels.products import TARGET
from detente.bridge.private import mlir as ir

DEPTHWISE, OF_TAPS = "detente_depthwise", "detente_depthwise_of_taps"
ATTENTION, OF_ATTENTION = "detente_attention", "detente_attention_backward"
CONVOLUTION, OF_INPUT, OF_KERNEL = (f"detente_convolution{of}" for of in ("", "_of_input", "_of_kernel"))
FOLDED, KEPT = (f"detente_threefry2x32_{what}" for what in ("folded", "kept"))
SPREAD, BATCH_NORM, OF_BATCH_NORM = (f"detente_batch_norm{of}" for of in ("_spread", "", "_backward"))
LAYER_NORM, OF_LAYER_NORM = "detente_layer_norm", "detente_layer_norm_backward"
OURS = (
    FOLDED, KEPT, SPREAD, BATCH_NORM, OF_BATCH_NORM, DEPTHWISE, OF_TAPS, ATTENTION, OF_ATTENTION, CONVOLUTION,
    OF_INPUT, OF_KERNEL, LAYER_NORM, OF_LAYER_NORM, UPDATE,
)  # fmt: skip
_KINDS = {bool: np.bool_, int: np.int64, float: np.float32}


def call(
    target: str,
    results: Sequence[tuple[int, ...]],
    *operands: Any,
    dtype: Any = np.float32,
    **attributes: float,
) -> list[Any]:
    """Arrays of the shapes ``results`` from a kernel; ``attributes`` as the kernel declares them."""
    out = [jax.ShapeDtypeStruct(shape, dtype) for shape in results]
    given = {name: _KINDS[type(value)](value) for name, value in attributes.items()}
    return jax.ffi.ffi_call(target, out, vmap_method="sequential")(*operands, **given)


def calls_in(module: Any) -> int:
    """Kernels that an MLIR module calls, products among them."""
    found = 0

    def look(op: Any) -> Any:
        nonlocal found
        if op.name == "stablehlo.custom_call":
            found += ir.StringAttr(op.attributes["call_target_name"]).value in (TARGET, *OURS)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return found
