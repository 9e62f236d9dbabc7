"""What a first step would build and measure, before there is one: ``detente bridge prepare``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detente.bridge.kernels.build import decided, is_there, loaded, remembering, wanted
from detente.bridge.kernels.trials import DECIDED
from detente.bridge.kernels.worth import WINS

# A first step has no time; here a machine that was busy for a moment must not decide for good.
PATIENCE = 8


def prepared(tell: Callable[[str], None], again: bool) -> dict[str, Any]:
    """``why`` there is no extension (empty: there is one) and its ``file``. Of each kind of work XLA's seconds by those
    of the calls (``leads``), which ``wins`` must reach for a call, or why it was not measured (``left``, XLA's own
    then); none of either where the user wants every call (``measured`` is False). ``folder``: where it is remembered,
    empty for nowhere. ``again``: what is remembered is measured anew, and stays until that is done."""
    tell("the bridge's kernels")
    library, why = loaded()
    folder = remembering()
    found: dict[str, Any] = {
        "why": why,
        "file": "" if why else str(library._name),  # as ctypes has it
        "folder": "" if why or folder is None else str(folder),
        "measured": not why and not wanted(),
        "wins": WINS,
        "leads": {},
        "left": {},
    }
    if not found["measured"]:
        return found
    for of in DECIDED:
        tell(f"XLA's {of} beside the library's")
        try:
            if not is_there(of):
                raise LookupError("this torch has no such functions")
            found["leads"][of] = decided(of, PATIENCE, again)
        except Exception as error:  # as in a step: XLA has its own
            found["left"][of] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return found
