"""Keras 3 on its JAX backend, as a pure function (keras.StatelessScope)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from detente.records.fault import UsageFault
from detente.workloads.own.jax_models.functional import Arrays, Functional, joined


def switch_off(model: Any) -> None:
    """Every dropout of the model, in place."""
    for layer in _layers(model, set()):
        for key in ("rate", "dropout", "recurrent_dropout"):
            if isinstance(getattr(layer, key, None), float):
                setattr(layer, key, 0.0)


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
    trained = {_name(v): v for v in model.trainable_variables}
    state = {_name(v): v for v in model.non_trainable_variables}
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
        _owners(model),
    )


def _name(variable: Any) -> str:
    return joined([variable.path])


def _owners(model: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for layer in _layers(model, set()):
        # A layer's own variables have its path and a name behind it; the longest path wins over the layers above.
        for variable in layer.variables:
            if variable.path.rpartition("/")[0] == layer.path:
                found[_name(variable)] = f"keras.{type(layer).__name__}"
    return found


def _layers(layer: Any, seen: set[int]) -> Iterator[Any]:
    """A layer and all below it, by Keras' lists and by attributes."""
    import keras

    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield layer
    for part in [*getattr(layer, "layers", ()), *vars(layer).values()]:
        if isinstance(part, keras.Layer):
            yield from _layers(part, seen)
