"""Real programs with names, as sides of an explanation: tiny GPT-2's train step, of JAX and of torch_xla."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detente.explain.side import Side
from detente.records.evidence import Evidence
from detente.stacks.protocol import Capture
from detente.worker.artefacts import keep_programs

GOLDEN = Path(__file__).parent.parent / "golden" / "programs"
_MODULES = ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
HELD = ("wte", "wpe", "ln_f", *(f"h.{layer}.{m}" for layer in (0, 1) for m in _MODULES))
# Canonical parameter -> the module that holds it there.
ANCHORS = {
    "jax": {f"transformer.{m}.weight": m for m in HELD},
    "torch-xla": {f"transformer.{m}.weight": f"transformer.{m}" for m in HELD},
}


def golden(stack: str, form: str = "hlo") -> bytes:
    ending = {"hlo": "hlo.pb", "hlo-optimised": "optimised.hlo.pb"}[form]
    return gzip.decompress((GOLDEN / f"gpt2-tiny-{stack}.named.{ending}.gz").read_bytes())


def evidence(folder: Path, stack: str, programs: Mapping[str, bytes] | None = None, **built: Any) -> Evidence:
    """A capture's, of these programs by form, or of the golden ones."""
    if programs is None:
        programs = {"hlo": golden(stack)}
        if stack == "jax":
            programs = {**programs, "hlo-optimised": golden(stack, "hlo-optimised")}
    kept = keep_programs(folder, [Capture(form, "step", data) for form, data in programs.items()])
    probes = {"anchors": ANCHORS.get(stack, ANCHORS["torch-xla"]), "built": dict(built)}
    return Evidence("ok", "done", programs=kept, versions={stack: "1.0"}, probes=probes)


def side(folder: Path, stack: str, programs: Mapping[str, bytes] | None = None, **built: Any) -> Side:
    return Side(stack, evidence(folder, stack, programs, **built), folder)
