"""Where two models part, and how a user is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["layer", "unused", "precision", "hidden", "loss", "backward"]


@dataclass(frozen=True)
class Difference:
    """Where two models part.

    kind     ``layer``: its values differ; ``unused``: JAX never consumes it; ``precision``: its values differ by no
             more than float32 rounds, which a side computes in; ``loss``: every layer agrees and the loss differs;
             ``hidden``: the loss agrees, and JAX has no such values, and what follows from them agrees; ``backward``:
             the loss agrees, and every layer
    tensors  torch's names of what is consumed there
    right, other  torch's operator and shape, and those of the nearest candidate in JAX; empty where there is none
    error    of the nearest candidate, relative to the rms; infinite where none has as many values
    agreed   torch's names of what the last boundary before it that agrees consumed; empty where none does
    given    whether what flowed into it holds the same values, in whatever order; None: not known
    """

    kind: Kind
    tensors: tuple[str, ...] = ()
    right: str = ""
    other: str = ""
    error: float = 0.0
    agreed: tuple[str, ...] = ()
    given: bool | None = None

    @property
    def text(self) -> str:
        """One or two sentences for a user."""
        return _TEXTS[self.kind](self)


# The end of a tensor's name that says which of a layer's tensors it is.
_ENDS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def _layer(tensors: Sequence[str]) -> str:
    """``encoder.0.norm1`` of its weight and its bias."""
    names = []
    for name in tensors:
        end = next((e for e in _ENDS if name.endswith((f".{e}", f"_{e}"))), None)
        names.append(name[: -len(end) - 1] if end else name)
    return ", ".join(dict.fromkeys(names))


def _where(found: Difference) -> str:
    """What lies before the difference."""
    agreed, layer = _layer(found.agreed), _layer(found.tensors)
    if found.given:
        return (
            f"What flows into it holds the same values, so look at {layer} itself (its weights, their layout, its "
            "settings), or at the order of what it is given (heads, channels)."
        )
    if found.given is False:
        start = (
            f"behind {agreed}, the last layer that agrees,"
            if agreed
            else "before it, in what the model is given,"
        )
        return f"What flows into it differs already: the difference arises {start} and in front of {layer}."
    if agreed:
        return f"The layers up to {agreed} agree, so it arises between there and here, {layer} included."
    return f"Nothing before it was compared: it arises in {layer} or in front of it."


def _of_layer(found: Difference) -> str:
    layer = _layer(found.tensors)
    if not np.isfinite(found.error):
        against = f"JAX has {found.other}" if found.other else "JAX has nothing"
        apart = f"torch has {found.right} there and {against}, of no result as many values"
    else:
        apart = f"{found.right} in torch, {found.other} in JAX, relative error {found.error:.2g}"
    return f"The first layer whose value differs is {layer} ({apart}). {_where(found)}"


def _of_precision(found: Difference) -> str:
    return (
        f"No layer differs by more than float32 rounds. The first that differs by more than float64 does is "
        f"{_layer(found.tensors)} ({found.right} in torch, {found.other} in JAX, relative error {found.error:.2g}), "
        f"and something in front of it or in it is computed in float32 though it was given float64. {_where(found)}"
    )


def _of_hidden(found: Difference) -> str:
    return (
        f"The loss agrees, and the values of {_layer(found.tensors)} ({found.right} in torch) are nowhere in JAX, "
        "though what follows from them agrees. Either that is wrong and counts for almost nothing, "
        "or JAX computes it in another order, and the difference lies in the backward pass or in the update."
    )


_TEXTS = {
    "hidden": _of_hidden,
    "layer": _of_layer,
    "unused": lambda d: (
        f"{d.tensors[0]} is never used in JAX: torch consumes it ({d.right}), and no equation of the JAX program does."
    ),
    "precision": _of_precision,
    "loss": lambda d: (
        f"Every layer agrees up to the last, {_layer(d.agreed)}, and the loss differs by {d.error:.2g} of its value: "
        "the difference lies behind it, in the loss."
    ),
    "backward": lambda d: (
        "Every layer and the loss agree: the difference lies in the backward pass (a gradient that is stopped, say) or "
        "in the update."
    ),
}
