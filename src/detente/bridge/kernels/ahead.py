"""What a first step would build and measure, before there is one: ``detente bridge prepare``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detente.bridge.kernels.build import decided, home, loaded
from detente.bridge.kernels.trials import DECIDED
from detente.bridge.kernels.worth import WINS, forget

# A first step has no time; here a machine that was busy for a moment must not decide for good.
PATIENCE = 8


def prepared(tell: Callable[[str], None], again: bool) -> dict[str, Any]:
    """``why`` there is no extension (empty: there is one), its ``file``, and of each kind of work XLA's seconds by
    those of the calls (``leads``), which ``wins`` must reach for a call; all of it remembered in ``folder``. ``again``:
    what is remembered is measured anew."""
    if again:
        forget(home())
    tell("the bridge's kernels")
    library, why = loaded()
    if why:
        return {"why": why, "file": "", "folder": "", "leads": {}, "wins": WINS}
    leads: dict[str, dict[str, float]] = {}
    for of in DECIDED:
        tell(f"XLA's {of} beside the library's")
        leads[of] = decided(of, PATIENCE)
    file = str(library._name)  # as ctypes has it
    return {"why": "", "file": file, "folder": str(home()), "leads": leads, "wins": WINS}
