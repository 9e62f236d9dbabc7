"""Flax NNX: the module is split into parameters and the rest, and merged again inside the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detente.workloads.named_calls import named_nnx, nnx_tree
from detente.workloads.own.jax_models.functional import Arrays, Functional, joined


def switch_off(model: Any) -> None:
    """Every dropout of the model, in place."""
    from flax import nnx

    for part in nnx_tree(nnx)(model).values():
        if isinstance(part, nnx.Dropout):
            part.rate = 0.0
        elif hasattr(part, "dropout_rate"):
            part.dropout_rate = 0.0


def is_one(model: Any) -> bool:
    from flax import nnx

    return isinstance(model, nnx.Module)


def opened(model: Any, loss: Callable[[Any, Any], Any], batch: Any, training: bool) -> Functional:
    """``loss(model, batch)``. The model is in training mode but for a forward region."""
    from flax import nnx

    model.train() if training else model.eval()
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    of_params, of_rest = (dict(nnx.to_flat_state(s)) for s in (params, rest))

    def merged(variables: dict[Any, Any], arrays: Arrays) -> Any:
        return nnx.from_flat_state([(p, v.replace(arrays[joined(p)])) for p, v in variables.items()])

    def run(trained: Arrays, state: Arrays, batch: Any) -> tuple[Any, Arrays]:
        module = nnx.merge(graphdef, merged(of_params, trained), merged(of_rest, state), copy=True)
        with named_nnx(module):
            found = loss(module, batch)
        _, _, after = nnx.split(module, nnx.Param, ...)
        return found, _arrays(dict(nnx.to_flat_state(after)))

    owners = {joined(p): name for p in (*of_params, *of_rest) if (name := _owner(model, p))}
    return Functional("flax.nnx", _arrays(of_params), _arrays(of_rest), run, owners)


def _arrays(variables: dict[Any, Any]) -> Arrays:
    return {joined(p): v.get_value() if hasattr(v, "get_value") else v.value for p, v in variables.items()}


def _owner(model: Any, path: tuple[Any, ...]) -> str:
    """The class of flax.nnx that the object on the way to a variable is of, or derives from."""
    at = model
    for part in path[:-1]:
        try:
            at = getattr(at, part) if isinstance(part, str) and hasattr(at, part) else at[part]
        except (KeyError, IndexError, TypeError):
            return ""
    for kind in type(at).__mro__:
        if kind.__module__.startswith("flax.nnx") and kind.__name__ not in ("Module", "Pytree", "Object"):
            return f"nnx.{kind.__name__}"
    return ""
