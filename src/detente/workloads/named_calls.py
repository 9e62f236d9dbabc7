"""Names of modules in the programs of JAX: while a model is traced for a capture, each of its modules, called, opens a
scope of its own path.

Flax Linen writes its modules' paths into every operation; NNX and Equinox write nothing, or the class alone. The paths
are those of the model's own tree (``h.0.ln_1``), so that two programs of one model can be laid side by side.

How it can fail: a transformation (``nnx.scan``, ``eqx.filter_vmap``) takes a module apart and hands its body another
object. Such a one is known by its class, where the tree holds one path of that class that nothing else has; else it
stays under the scope that it was called in, and its children under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from detente.programs.scope import scope_name
from detente.workloads.names_asked import names_are_asked

# What a module holds, by path below it, itself under "".
Tree = Callable[[Any], Mapping[str, Any]]


def named_nnx(root: Any) -> AbstractContextManager[None]:
    """Around the loss of a module of Flax NNX: its modules are named, where that was asked for."""
    if not names_are_asked():
        return nullcontext()
    import jax
    from flax import nnx

    return named_calls(jax.named_scope, root, nnx_tree(nnx))


def named_equinox(root: Any) -> AbstractContextManager[None]:
    """The same around the loss of a module of Equinox."""
    if not names_are_asked():
        return nullcontext()
    import equinox
    import jax

    return named_calls(jax.named_scope, root, equinox_tree(equinox))


@contextmanager
def named_calls(scope: Callable[[str], Any], root: Any, tree: Tree) -> Iterator[None]:
    """While it lasts, every call of a module of ``root`` runs within ``scope(path)``, the path relative to the call
    around it. ``scope`` is ``jax.named_scope``; ``tree`` lists a module and what it holds."""
    named = _Named(scope, root, tree)
    replaced = []
    for kind in dict.fromkeys(type(m) for m in named.held.values()):
        owner = next((k for k in kind.__mro__ if "__call__" in vars(k)), None)
        if owner is None or owner is object or owner in (o for o, _ in replaced):
            continue
        replaced.append((owner, vars(owner)["__call__"]))
        owner.__call__ = named.around(vars(owner)["__call__"])
    try:
        yield
    finally:
        for owner, plain in replaced:
            owner.__call__ = plain


class _Named:
    def __init__(self, scope: Callable[[str], Any], root: Any, tree: Tree) -> None:
        self.scope, self.tree = scope, tree
        self.held = dict(tree(root))
        # Objects by identity, which ``kept`` keeps from being another's.
        self.kept: list[Any] = list(self.held.values())
        self.paths = {id(m): path for path, m in self.held.items()}
        by_class: dict[type, list[str]] = {}
        for path, module in self.held.items():
            by_class.setdefault(type(module), []).append(path)
        self.alone = {kind: paths[0] for kind, paths in by_class.items() if len(paths) == 1}
        self.around_now: list[str] = [""]

    def around(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._path(module)
            above = self.around_now[-1]
            below = path.removeprefix(f"{above}.") if above else path
            if not path or path == above:
                return plain(module, *args, **kwargs)
            self.around_now.append(path)
            try:
                with self.scope(scope_name(below)):
                    return plain(module, *args, **kwargs)
            finally:
                self.around_now.pop()

        return call

    def _path(self, module: Any) -> str:
        """The module's path; one that the tree does not hold gets its class's, and what it holds is then known."""
        if id(module) not in self.paths:
            path = self.alone.get(type(module), self.around_now[-1])
            self.kept.append(module)
            for below, held in self.tree(module).items():
                self.kept.append(held)
                self.paths.setdefault(id(held), ".".join(filter(None, (path, below))))
        return self.paths[id(module)]


def nnx_tree(nnx: Any) -> Tree:
    """A module of Flax NNX and the modules in it, lists opened. Up to Flax 0.12.0 it is the module's own way."""
    every = getattr(nnx, "iter_modules", None) or nnx.Module.iter_modules

    def tree(root: Any) -> dict[str, Any]:
        found = {"": root}
        for path, module in every(root):
            found.setdefault(".".join(str(p) for p in path), module)
        return found

    return tree


def equinox_tree(equinox: Any) -> Tree:
    """A module of Equinox and the modules in its fields, lists, tuples and dictionaries opened."""

    def tree(root: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        _walk(root, "", found, equinox.Module)
        return found

    return tree


def _walk(value: Any, path: str, found: dict[str, Any], kind: type) -> None:
    if isinstance(value, kind):
        found[path] = value
        held = {name: getattr(value, name, None) for name in type(value).__dataclass_fields__}
    elif isinstance(value, Mapping):
        held = value
    elif isinstance(value, list | tuple):
        held = dict(enumerate(value))
    else:
        return
    for name, one in held.items():
        _walk(one, ".".join(filter(None, (path, str(name)))), found, kind)
