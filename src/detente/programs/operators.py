"""Operators of PyTorch, as a capture wrote them down, to a Module: what torch-eager dispatched, or the graphs that
torch.compile handed to Inductor.

The file is one JSON object, ``{"schema": "detente/operators/1", "name", "operations": [...]}``; an operation has
``op`` (``aten.addmm.default``), ``results`` ([dtype, [dims]] each), ``operands`` (positions before it, -1 for what was
there before the step), ``path`` (a module's; null where nobody knows), ``direction``, ``flops`` (of products, torch's
own count), ``seconds`` (null where it was not timed) and, where a result's channels are innermost in memory,
``channels_last``. Where a compiler made kernels of them, ``kernels`` lists those
that were timed: ``name``, ``operations`` (the positions of what it holds, the last one its result) and ``seconds``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from detente.programs.module import Computation, Instruction, Module, ProgramError, Shape, Work
from detente.programs.scope import OPTIMIZER, ROOT, scope_name

SCHEMA = "detente/operators/1"
# torch's names of dtypes in HLO's words.
_DTYPES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "s64", "int32": "s32",
    "int16": "s16", "int8": "s8", "uint8": "u8", "bool": "pred", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def read_operators(data: bytes) -> Module:
    """Raises ProgramError for anything that is no such file."""
    with _operators(data) as document:
        rows = document["operations"]
        # What was there before the step: one parameter, which all of them read.
        before = Instruction("parameter", (Shape("token"),))
        found = [before, *(_instruction(row, at) for at, row in enumerate(rows))]
        name = str(document["name"])
        # A step is run for what it leaves behind, so that every operation is read.
        found.append(Instruction("tuple", (), tuple(range(len(found)))))
        digest = hashlib.sha256()
        for row in rows:
            digest.update(f"{row['op']} {row['results']} {row['operands']}\n".encode())
        entry = Computation("step", tuple(found), len(found) - 1)
        return Module(name, {"step": entry}, "step", len(rows), 0, digest.hexdigest())


@contextmanager
def _operators(data: bytes) -> Iterator[dict[str, Any]]:
    """The document, which may be a stranger's: whatever it lacks, or has of another kind or size, is a ProgramError."""
    try:
        document = json.loads(data)
        if document["schema"] != SCHEMA:
            raise ProgramError(f"operators of schema {document['schema']!r}, not {SCHEMA!r}")
        yield document
    except ProgramError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ProgramError(f"not a list of operators ({len(data)} bytes): {error}") from error


def _instruction(row: dict[str, Any], at: int) -> Instruction:
    results = tuple(
        Shape(_DTYPES.get(str(d), str(d)), tuple(int(n) for n in dims)) for d, dims in row["results"]
    )
    if any(not -1 <= o < at for o in row["operands"]):
        raise ProgramError(f"operation {at} ({row['op']}) reads {row['operands']}, which is not before it")
    return Instruction(
        opcode=row["op"],
        results=results,
        operands=tuple(int(o) + 1 for o in row["operands"]),
        detail=Work(int(row["flops"])) if row.get("flops") else None,
        name=name_of(row["op"], at),
        origin=origin_of(row["path"], row["direction"]),
    )


def seconds_of(data: bytes) -> dict[str, float]:
    """Name of an operation -> its seconds, of those that were timed. Raises ProgramError for what is no time."""
    with _operators(data) as document:
        rows = document["operations"]
        return {
            name_of(r["op"], k): _time(r["seconds"])
            for k, r in enumerate(rows)
            if r.get("seconds") is not None
        }


def operator_facts(data: bytes) -> dict[str, int]:
    """What an arm's check reads of them.

    attention_calls  attentions that run as a kernel of their own, forward
    convolutions     of the forward pass and the backward
    channels_last    those among them whose result has its channels innermost in memory
    """
    with _operators(data) as document:
        rows = document["operations"]
        convolutions = [r for r in rows if "convolution" in str(r["op"])]
        return {
            "attention_calls": sum(_attends(str(r["op"])) for r in rows),
            "convolutions": len(convolutions),
            "channels_last": sum(bool(r.get("channels_last")) for r in convolutions),
        }


def _attends(op: str) -> bool:
    """By the names that torch gives its kernels.

    >>> _attends("aten._scaled_dot_product_flash_attention_for_cpu.default")
    True
    >>> _attends("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
    False
    """
    return "_scaled_dot_product_" in op and not any(word in op for word in ("_math", "backward"))


def kernels_of(data: bytes) -> tuple[dict[str, tuple[str, ...]], dict[str, float]]:
    """``(kernel -> the names of the operations that it holds, kernel -> its seconds)``; empty where none was timed.
    Raises ProgramError for a kernel of operations that are not there."""
    with _operators(data) as document:
        rows, held, seconds = document["operations"], {}, {}
        for kernel in document.get("kernels", ()):
            places = kernel["operations"]
            if any(not 0 <= k < len(rows) for k in places):
                raise ProgramError(
                    f"kernel {kernel['name']!r} holds {places}, and there are {len(rows)} operations"
                )
            held[kernel["name"]] = tuple(name_of(rows[k]["op"], k) for k in places)
            seconds[kernel["name"]] = _time(kernel["seconds"])
        return held, seconds


def _time(value: Any) -> float:
    found = float(value)
    if not (math.isfinite(found) and found >= 0):
        raise ProgramError(f"{value!r} is no time")
    return found


def name_of(op: str, at: int) -> str:
    """The name of the operation at a position, which no other has."""
    return f"{op}#{at}"


def origin_of(path: str | None, direction: str) -> str:
    """A path and a direction as JAX would write them down (programs/scope.py reads it); empty for an unknown one.

    >>> origin_of("h.0.attn", "backward")
    'transpose(root)/h.0.attn/_'
    """
    path = scope_name(path) if path is not None else None
    if direction == OPTIMIZER:
        return f"{OPTIMIZER}/{path}/_" if path else f"{OPTIMIZER}/_"
    if path is None:
        return ""
    around = {"forward": ROOT, "backward": f"transpose({ROOT})", "remat": f"{ROOT}/rematted_computation"}
    return "/".join(filter(None, (around[direction], path, "_")))
