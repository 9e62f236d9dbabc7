"""What `detente bridge prepare` says: the extension, and what is called instead of XLA's own, by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

# Kinds of work, as the bridge names them, and as a reader does.
_NAMES = {
    "f32": "products of float32",
    "bf16": "products of bfloat16",
    "convolutions": "convolutions",
    "attention": "attention",
}


def kernels_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Of the probe ``kernels`` (worker/jobs/kernels.py)."""
    if found["why"]:
        yield f"The bridge calls no kernels here: {found['why']}. Its steps are XLA's alone."
        return
    yield f"The bridge's kernels: {found['file']}"
    if not found["measured"]:
        yield "All that they can do is called, and nothing was measured: DETENTE_KERNELS is 1."
        return
    wins = found["wins"]
    yield f"XLA's time by that of PyTorch's library on this machine; {wins:.2f} and more is called:"
    for of, leads in found["leads"].items():
        name = _NAMES.get(of, of)
        if len(leads) == 1:
            ((_, lead),) = leads.items()
            yield f"  {name:32} {_shown(lead)}  {_called(lead, wins)}"
            continue
        yield f"  {name}"
        for form, lead in leads.items():
            yield f"    {form:30} {_shown(lead)}  {_called(lead, wins)}"
    for of, why in found["left"].items():
        yield f"  {_NAMES.get(of, of):32}    –  XLA's own: {why}"
    if found["folder"]:
        yield f"Remembered in {found['folder']}; `detente bridge prepare --again` measures anew."
    else:
        yield "Remembered nowhere: no folder can be had."


def _shown(lead: float) -> str:
    """Cut, not rounded: what is below what wins is not shown as that."""
    return f"{math.floor(lead * 100) / 100:5.2f}"


def _called(lead: float, wins: float) -> str:
    return "called" if lead >= wins else "XLA's own"
