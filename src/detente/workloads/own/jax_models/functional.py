"""The one form that every library's model is brought to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from detente.records.fault import UsageFault

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Functional:
    """
    library   flax.nnx, flax.linen, equinox, haiku, keras or jax
    trained   arrays that the optimizer moves, by name
    state     other arrays that the step reads and may write: running statistics, counters, random keys
    run       (trained, state, batch in the user's form) -> (what the user's loss returned, the new state)
    owners    name -> class of the module that owns it, as ``nnx.Linear``; absent where nobody knows
    """

    library: str
    trained: Arrays
    state: Arrays
    run: Callable[[Arrays, Arrays, Any], tuple[Any, Arrays]]
    owners: Mapping[str, str] = field(default_factory=dict)


def joined(parts: Any) -> str:
    """A path as a name: ``("layers", 0, "kernel")`` is ``layers.0.kernel``, and what a library joins by slashes too."""
    return ".".join(str(part).replace("/", ".") for part in parts)


def value_and_outputs(found: Any) -> tuple[Any, dict[str, Any]]:
    """The loss and the named arrays beside it, of what the user's loss returned: a number, or that and arrays by name
    or alone (``aux``). Raises UsageFault when the loss is not one number."""
    value, aux = found if isinstance(found, tuple | list) and len(found) == 2 else (found, {})
    extents = getattr(value, "shape", None)
    if extents != ():
        shape = f"a {type(value).__name__}" if extents is None else f"an array of shape {extents}"
        raise UsageFault(
            f"the loss returned {shape}, not one number",
            "return a 0-d array, or (0-d array, {name: array})",
        )
    named = aux if isinstance(aux, Mapping) else {"aux": aux}
    return value, {str(n): a for n, a in named.items() if hasattr(a, "shape")}
