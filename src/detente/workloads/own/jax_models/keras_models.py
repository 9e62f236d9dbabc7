"""Keras 3 on its JAX backend, as a pure function (keras.StatelessScope)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from detente.records.fault import UsageFault
from detente.workloads.own.jax_models.functional import Arrays, Functional, joined

# Where Keras' layers keep how much they drop; an attention layer asks its own before it takes the fused product.
_RATES = ("rate", "dropout", "recurrent_dropout", "_dropout")


def switch_off(model: Any) -> None:
    """Every dropout of the model, in place. Raises UsageFault where a layer keeps its rate."""
    layers = list(_layers(model, set()))
    for layer in layers:
        for key in _RATES:
            # An LSTM shows its cell's rates, and the cell is a layer of its own.
            if _is_number(getattr(layer, key, None)) and not _is_shown(layer, key):
                setattr(layer, key, 0.0)
    for layer in layers:
        kept = {key: rate for key in _RATES if _is_number(rate := getattr(layer, key, None)) and rate}
        if kept:
            raise UsageFault(
                f"the dropout of the Keras layer {layer.name!r} ({type(layer).__name__}) cannot be set: {kept}",
                "give the function an argument `dropout`, which it is called with as 0",
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_shown(layer: Any, key: str) -> bool:
    found = getattr(type(layer), key, None)
    return isinstance(found, property) and found.fset is None


def is_one(model: Any) -> bool:
    import keras

    return isinstance(model, keras.Layer)


def opened(model: Any, loss: Callable[[Any, Any], Any], batch: Any, training: bool) -> Functional:
    """``loss(model, batch)``, with ``training=True`` said by the user where it matters."""
    import keras

    if keras.backend.backend() != "jax":
        raise UsageFault(
            f"keras runs on its backend {keras.backend.backend()!r} here",
            "a JAX row needs Keras on JAX: leave KERAS_BACKEND alone in the file, detente sets it",
        )
    if not model.built:
        loss(model, batch)  # Keras makes the variables of a layer when it is first called
    names = names_of(model)
    trained = {names[v.path]: v for v in model.trainable_variables}
    state = {names[v.path]: v for v in model.non_trainable_variables}
    if len(trained) + len(state) != len(model.variables):
        raise UsageFault(
            "two variables of the Keras model have one path",
            "give its layers names of their own: Dense(8, name='up')",
        )

    def run(values: Arrays, kept: Arrays, batch: Any) -> tuple[Any, Arrays]:
        mapping = [(v, values[n]) for n, v in trained.items()] + [(v, kept[n]) for n, v in state.items()]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            found = loss(model, batch)
        after = {n: scope.get_current_value(v) for n, v in state.items()}
        return found, {n: kept[n] if a is None else a for n, a in after.items()}

    return Functional(
        "keras",
        {n: v.value for n, v in trained.items()},
        {n: v.value for n, v in state.items()},
        run,
        _owners(model, names),
    )


# What Keras counts over a whole process beside layers: a variable or a generator of random numbers without a name.
_COUNTED = ("variable", "seedgenerator")


def names_of(model: Any) -> dict[str, str]:
    """The path of each variable -> its name, which is that of every model that the same function makes.

    Keras numbers what its user did not name over the whole process: the second model of a function has ``dense_3``
    where the first has ``dense``, and the weights of one were not found in the other. So these numbers are counted
    anew, in the order of the model's variables. A name that its user gave stays, but for one that Keras might have
    given (a ``Dense`` called ``dense_7``), which nothing tells from Keras' own.
    """
    kinds = {layer.name: _plain(type(layer).__name__) for layer in _layers(model, set())}
    met: dict[str, dict[str, int]] = {}

    def counted(part: str) -> str:
        kind = kinds.get(part)
        for base in (part, re.sub(r"_\d+$", "", part)):
            # Bidirectional calls its layers after the counted one that it was given.
            said = _plain(re.sub(r"^(forward|backward)_", "", base))
            if said == kind or _plain(base) in (kind, *_COUNTED):
                break
        else:
            return part
        parts = met.setdefault(base, {})
        at = parts.setdefault(part, len(parts))
        return f"{base}_{at}" if at else base

    return {v.path: joined(counted(part) for part in v.path.split("/")) for v in model.variables}


def _plain(name: str) -> str:
    return re.sub(r"\W|_", "", name).lower()


def _owners(model: Any, names: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for layer in _layers(model, set()):
        # A layer's own variables have its path and a name behind it; the longest path wins over the layers above.
        for variable in layer.variables:
            if variable.path.rpartition("/")[0] == layer.path:
                found[names[variable.path]] = f"keras.{type(layer).__name__}"
    return found


def _layers(layer: Any, seen: set[int]) -> Iterator[Any]:
    """A layer and all below it, by attributes and by the lists and dictionaries in them (Keras' own are of these)."""
    import keras

    if id(layer) in seen:
        return
    seen.add(id(layer))
    if isinstance(layer, keras.Layer):
        yield layer
        parts = [*getattr(layer, "layers", ()), *vars(layer).values()]
    else:
        parts = layer.values() if isinstance(layer, Mapping) else layer
    for part in parts:
        if isinstance(part, keras.Layer | list | tuple | Mapping):
            yield from _layers(part, seen)
