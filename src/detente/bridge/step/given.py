"""Weights and buffers that somebody hands to a step by name (``step.restart``)."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import jax
import numpy as np
import torch

from detente.bridge.capture.weights import Weights
from detente.bridge.refusal import Reason, Refused
from detente.bridge.state.place import from_jax

# What a module says of itself beside its tensors (``get_extra_state``) stands in its state_dict under this name.
_EXTRA = "_extra_state"


def named(weights: Weights, tensors: Any) -> dict[str, torch.Tensor]:
    """Of a mapping (of torch's tensors, numpy's or JAX's arrays), by canonical name and in the dtype that the module
    has. A tied tensor may come under any of its names, or under several; the last one counts, as in
    ``load_state_dict``. What a module's ``get_extra_state`` gave is left out: it is no tensor of a step.

    Raises Refused (``weights``) with every name and every shape that is none of the module's, and TypeError for what is
    no mapping.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(
            f"restart takes tensors by name (a state_dict), and this is a {type(tensors).__name__}"
        )
    found: dict[str, torch.Tensor] = {}
    reasons: list[Reason] = []
    for name, value in tensors.items():
        live = weights.tensors.get(weights.canonical(name))
        if live is None and str(name).rpartition(".")[2] == _EXTRA:
            continue
        if live is None:
            reasons.append(_unknown(name, weights))
            continue
        given = torch.as_tensor(from_jax(value) if isinstance(value, jax.Array | np.ndarray) else value)
        if given.shape != live.shape:
            what = f"{name} has shape {list(given.shape)}, and the module's {list(live.shape)}"
            reasons.append(Reason("weights", what, hint="give it in the module's shape; nothing was changed"))
            continue
        found[weights.canonical(name)] = given.to(live.dtype)
    if reasons:
        raise Refused(reasons)
    return found


def _unknown(name: str, weights: Weights) -> Reason:
    known = [*weights.tensors, *weights.aliases]
    near = get_close_matches(str(name), known, 1)
    instead = f"is it {near[0]}?" if near else f"it has {', '.join(known[:3])}{', ...' if known[3:] else ''};"
    return Reason(
        "weights", f"{name!r} is no name of the module", hint=f"{instead} nothing was changed by this call"
    )
