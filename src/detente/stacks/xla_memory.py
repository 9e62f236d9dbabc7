"""Labelled memory of a stack that runs on an XLA client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detente.programs.wire import written


def labelled_memory(device: Any, plan: Mapping[str, float]) -> dict[str, int]:
    """Bytes by label: ``live_tensors`` where the device's allocator tells a peak, ``compiler_estimate`` where there is
    a plan (argument + output + temp - alias, of ``memory_analysis``). A label that is not known is absent."""
    found = {}
    stats = device.memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        found["live_tensors"] = int(stats["peak_bytes_in_use"])
    if plan:
        found["compiler_estimate"] = int(
            plan["argument_bytes"] + plan["output_bytes"] + plan["temp_bytes"] - plan["alias_bytes"]
        )
    return found


def planned_memory(plan: Mapping[str, float], parameters: int, state: int) -> dict[str, int]:
    """What a program will hold, by label; empty where the backend has no plan."""
    if not plan:
        return {}
    peak = plan["argument_bytes"] + plan["output_bytes"] + plan["temp_bytes"] - plan["alias_bytes"]
    return {
        "planned_parameters": parameters,
        "planned_state": state,
        "planned_temporary": int(plan["temp_bytes"]),
        "planned_peak": int(peak),
    }


def live_bytes(jax: Any) -> int:
    """Bytes of the arrays that live in this process."""
    return sum(a.nbytes for a in jax.live_arrays())


def read_plan(analysis: Any) -> dict[str, float]:
    """``memory_analysis()`` as facts, in bytes; empty where the backend has none."""
    if analysis is None:
        return {}
    return {
        "argument_bytes": float(analysis.argument_size_in_bytes),
        "output_bytes": float(analysis.output_size_in_bytes),
        "temp_bytes": float(analysis.temp_size_in_bytes),
        "alias_bytes": float(analysis.alias_size_in_bytes),
    }


def with_buffers(module: bytes, analysis: Any) -> bytes:
    """A serialised HloModuleProto as an HloProto together with the compiler's assignment of buffers, as XLA's own dump
    has it; the module alone where this version tells none."""
    buffers = getattr(analysis, "serialized_buffer_assignment_proto", None) or b""
    return written(1, module) + written(3, buffers) if buffers else module
