"""Models that are trees of arrays: Equinox's modules, the variables of Flax Linen, Haiku's parameters, plain JAX."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from detente.workloads.named_calls import named_equinox
from detente.workloads.own.jax_models.functional import Arrays, Functional, joined

Loss = Callable[..., Any]


def of_equinox(model: Any, loss: Loss, batch: Any, training: bool) -> Functional:
    """``loss(model, batch)``; of a model with state ``(model, equinox.nn.State)`` as first value, ``loss(model, state,
    batch)`` that returns (value, state) or (value, (state, outputs)). Every array of floating point in the model is
    trained, as ``equinox.filter_value_and_grad`` has it."""
    model, state = model if isinstance(model, tuple) else (model, None)
    tree = _Tree(model)
    owners = {n: f"eqx.{kind}" for n, kind in _owners_in(model, tree, "equinox")}

    def named(model: Any, *args: Any) -> Any:
        with named_equinox(model):
            return loss(model, *args)

    if state is None:
        return _alone("equinox", tree, named, owners)
    return _with_state("equinox", tree, _Tree(state, "state."), named, owners)


def of_linen(model: Any, loss: Loss, batch: Any, training: bool) -> Functional:
    """``loss(variables, batch)``: what ``module.init`` gave, trained under ``params``. New values of other collections
    are outputs of the loss, under the collection's name: (value, {"batch_stats": ...}). The first value may be
    (module, variables)."""
    variables = model[1] if isinstance(model, tuple) else model
    params = _Tree(variables["params"])
    rest = _Tree({c: v for c, v in variables.items() if c != "params"})

    def run(trained: Arrays, state: Arrays, batch: Any) -> tuple[Any, Arrays]:
        collections = rest.filled(state)
        found = loss({"params": params.filled(trained), **collections}, batch)
        value, aux = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        if not isinstance(aux, Mapping):
            return found, state
        new = {c: aux.get(c, old) for c, old in collections.items()}
        return (value, {n: a for n, a in aux.items() if n not in collections}), _Tree(new).arrays

    owners = _observed("flax.linen", lambda: run(params.arrays, rest.arrays, batch))
    # Statistics stand beside the parameters of their module, under a collection of their own.
    kept = {n.partition(".")[2]: n for n in rest.arrays}
    named = {**{n: n for n in params.arrays}, **kept}
    found = {
        full: owners[n.rpartition(".")[0]] for n, full in named.items() if n.rpartition(".")[0] in owners
    }
    return Functional("flax.linen", params.arrays, rest.arrays, run, found)


def of_haiku(model: Any, loss: Loss, batch: Any, training: bool) -> Functional:
    """``loss(params, batch)`` with what ``transform(...).init`` gave; of ``transform_with_state`` (params, state) as
    first value and ``loss(params, state, batch)`` that returns (value, state) or (value, (state, outputs))."""
    params, state = model if isinstance(model, tuple) else (model, None)
    tree = _Tree(params)
    plain = (
        _alone("haiku", tree, loss, {})
        if state is None
        else _with_state("haiku", tree, _Tree(state), loss, {})
    )
    seen = _observed("haiku", lambda: plain.run(plain.trained, plain.state, batch))
    owners = {
        n: seen[n.rpartition(".")[0]] for n in (*plain.trained, *plain.state) if n.rpartition(".")[0] in seen
    }
    return Functional("haiku", plain.trained, plain.state, plain.run, owners)


def of_jax(model: Any, loss: Loss, batch: Any, training: bool) -> Functional:
    """``loss(params, batch)`` over any tree of arrays; all of floating point are trained."""
    return _alone("jax", _Tree(model), loss, {})


def _alone(library: str, tree: _Tree, loss: Loss, owners: Mapping[str, str]) -> Functional:
    def run(trained: Arrays, state: Arrays, batch: Any) -> tuple[Any, Arrays]:
        return loss(tree.filled({**trained, **state}), batch), state

    trained = {n: a for n, a in tree.arrays.items() if _is_trained(a)}
    return Functional(
        library, trained, {n: a for n, a in tree.arrays.items() if n not in trained}, run, owners
    )


def _with_state(library: str, tree: _Tree, kept: _Tree, loss: Loss, owners: Mapping[str, str]) -> Functional:
    trained = {n: a for n, a in tree.arrays.items() if _is_trained(a)}
    fixed = {n: a for n, a in tree.arrays.items() if n not in trained}

    def run(trained: Arrays, state: Arrays, batch: Any) -> tuple[Any, Arrays]:
        own = {n: a for n, a in state.items() if n in kept.arrays}
        left = {n: a for n, a in state.items() if n not in own}
        value, after = loss(tree.filled({**trained, **left}), kept.filled(own), batch)
        new, outputs = after if type(after) is tuple and len(after) == 2 else (after, {})
        return (value, outputs), {**left, **_Tree(new, kept.prefix).arrays}

    return Functional(library, trained, {**fixed, **kept.arrays}, run, owners)


def _is_trained(array: Any) -> bool:
    import jax.numpy as jnp

    return jnp.issubdtype(array.dtype, jnp.inexact)


class _Tree:
    """A tree whose arrays have names; what is no array stays as it is."""

    def __init__(self, tree: Any, prefix: str = "") -> None:
        import jax

        self.prefix = prefix
        found, self._form = jax.tree_util.tree_flatten_with_path(tree)
        self._leaves = [leaf for _, leaf in found]
        self.paths = {i: path for i, (path, leaf) in enumerate(found) if hasattr(leaf, "dtype")}
        self._names = {i: prefix + joined(map(_part, path)) for i, path in self.paths.items()}
        self.arrays: Arrays = {name: self._leaves[i] for i, name in self._names.items()}

    def named_paths(self) -> Iterator[tuple[str, Any]]:
        for i, path in self.paths.items():
            yield self._names[i], path

    def filled(self, arrays: Arrays) -> Any:
        import jax

        leaves = [arrays[self._names[i]] if i in self._names else leaf for i, leaf in enumerate(self._leaves)]
        return jax.tree_util.tree_unflatten(self._form, leaves)


def _part(key: Any) -> Any:
    """What a key of a path says: an attribute's name, an index, a key."""
    return next((getattr(key, n) for n in ("name", "idx", "key") if hasattr(key, n)), key)


def _owners_in(model: Any, tree: _Tree, package: str) -> Iterator[tuple[str, str]]:
    """Names with the class of that package that owns them, by the attributes on the way."""
    for name, path in tree.named_paths():
        at = model
        for key in path[:-1]:
            part = _part(key)
            at = getattr(at, part) if hasattr(key, "name") else at[part]
        kind = next((k for k in type(at).__mro__ if k.__module__.startswith(f"{package}.nn")), None)
        if kind is not None:
            yield name, kind.__name__


# Library -> (its module that intercepts methods, the prefix of its classes here).
_INTERCEPTED = {"flax.linen": "linen", "haiku": "haiku"}


def _observed(library: str, call: Callable[[], Any]) -> dict[str, str]:
    """Path of a module -> its class, of those that the loss calls: both libraries make their modules as they run, and
    so no object knows who owns a parameter."""
    import jax

    seen: dict[str, str] = {}
    with _intercepting(library, seen):
        jax.eval_shape(call)
    return seen


@contextmanager
def _intercepting(library: str, seen: dict[str, str]) -> Iterator[None]:
    package, prefix = sys.modules[library], _INTERCEPTED[library]

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        path = (
            joined(module.path) if library == "flax.linen" else joined([getattr(module, "module_name", "")])
        )
        of_library = (k for k in type(module).__mro__ if k.__module__.startswith(library.partition(".")[0]))
        kind = next(of_library, None)
        if kind is not None and kind.__name__ != "Module":
            seen.setdefault(path, f"{prefix}.{kind.__name__}")
        return call(*args, **kwargs)

    with package.intercept_methods(note):
        yield
