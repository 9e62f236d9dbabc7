"""A user's model in JAX, whichever library it is written in, as the parts that a jitted step works on."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.contract import Contract
from detente.records.fault import UsageFault
from detente.records.precision import PRECISIONS
from detente.workloads.own import entries
from detente.workloads.own.form import Form, draws
from detente.workloads.own.from_file import call_function, load_file, takes
from detente.workloads.own.jax_models import keras_models, nnx_models, pytrees
from detente.workloads.own.jax_models.functional import Functional, value_and_outputs
from detente.workloads.own.jax_models.raised import raised
from detente.workloads.own.mapping.map_weights import map_weights
from detente.workloads.own.mapping.tensors import Tensor
from detente.workloads.own.size import OwnSize
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

Location = tuple[str | int, ...]
HINT = (
    "return (model, loss, batch) or (model, loss, batch, optax optimizer); docs/compare-your-own-model.md says what "
    "model and loss are in each library"
)


@dataclass(frozen=True)
class Library:
    """How a library's models are known and opened. ``imported``: what its models come from; a model is asked about only
    where the user's file has imported that. ``switch_off`` sets its dropout to 0; None where no object has rates."""

    imported: str
    is_one: Callable[[Any], bool]
    opened: Callable[[Any, Any, Any, bool], Functional]
    switch_off: Callable[[Any], None] | None = None


def _is_equinox(model: Any) -> bool:
    import equinox

    return isinstance(model[0] if type(model) is tuple and model else model, equinox.Module)


def _is_linen(model: Any) -> bool:
    import flax.linen

    if type(model) is tuple:
        return len(model) == 2 and isinstance(model[0], flax.linen.Module) and _has_params(model[1])
    return _has_params(model)


def _has_params(model: Any) -> bool:
    return isinstance(model, Mapping) and "params" in model


def _is_haiku(model: Any) -> bool:
    params = model[0] if type(model) is tuple and len(model) == 2 else model
    return isinstance(params, Mapping) and all(isinstance(v, Mapping) for v in params.values())


def _is_tree(model: Any) -> bool:
    import jax

    leaves = jax.tree.leaves(model)
    return bool(leaves) and all(hasattr(leaf, "dtype") for leaf in leaves)


# In this order: a tree of arrays may be anybody's, so what has a class of its own is asked first.
LIBRARIES = (
    Library("flax.nnx", nnx_models.is_one, nnx_models.opened, nnx_models.switch_off),
    Library("keras", keras_models.is_one, keras_models.opened, keras_models.switch_off),
    Library("equinox", _is_equinox, pytrees.of_equinox),
    Library("flax.linen", _is_linen, pytrees.of_linen),
    Library("haiku", _is_haiku, pytrees.of_haiku),
    Library("jax", _is_tree, pytrees.of_jax),
)


@dataclass(frozen=True)
class Loaded:
    """What a user's function comes to."""

    model: Any
    loss: Callable[..., Any]
    batch: Any
    optimizer: Any = None


def load(size: Size, precision: str = "fp32") -> Loaded:
    """Run the user's function. Raises UsageFault that says which part of what it returned is wrong."""
    assert isinstance(size, OwnSize)
    target = size.functions["jax"]
    os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported
    arguments = {**size.changed("jax"), "compute": PRECISIONS[precision].compute}
    found = call_function(target, arguments)
    if _keras_casts(precision):
        found = call_function(target, arguments)
    if not isinstance(found, tuple | list) or len(found) not in (3, 4):
        shape = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise UsageFault(f"{target} returned a {type(found).__name__}{shape}", HINT)
    loaded = Loaded(*found)
    if "torch" in sys.modules and isinstance(loaded.model, sys.modules["torch"].nn.Module):
        raise UsageFault(
            f"{target} returned a torch module, and its imports say JAX",
            "import nothing of JAX in what the function of a torch model reaches",
        )
    if not callable(loaded.loss):
        raise UsageFault(f"{target}: loss is a {type(loaded.loss).__name__}", HINT)
    if isinstance(loaded.optimizer, tuple | list) and not hasattr(loaded.optimizer, "update"):
        raise UsageFault(
            f"{target} returned {len(loaded.optimizer)} optimizers",
            "one step of one optimizer is compared: give one over all parameters, or a function of its own for each "
            "optimizer with the loss that it minimises",
        )
    if loaded.optimizer is not None and not (
        hasattr(loaded.optimizer, "init") and hasattr(loaded.optimizer, "update")
    ):
        raise UsageFault(
            f"{target}: optimizer is a {type(loaded.optimizer).__name__}, not one of optax", HINT
        )
    return loaded


def _keras_casts(precision: str) -> bool:
    """Layers of Keras cast what they are given to dtypes that they took when they were made. Whether those were others
    than this precision's, in which case they are now these, and the model is to be made again."""
    keras, wanted = sys.modules.get("keras"), PRECISIONS[precision]
    if keras is None:
        return False
    policy = wanted.parameters if wanted.compute == wanted.parameters else f"mixed_{wanted.compute}"
    if (keras.config.floatx(), keras.config.dtype_policy().name) == (wanted.parameters, policy):
        return False
    keras.config.set_floatx(wanted.parameters)
    keras.config.set_dtype_policy(policy)
    return True


def functional(loaded: Loaded, target: str, batch: Any, training: bool, dropout: bool) -> Functional:
    """The model as a function of named arrays. Raises UsageFault for what is of no library, and for a model without
    anything to train."""
    for library in LIBRARIES:
        if library.imported in sys.modules and library.is_one(loaded.model):
            if not dropout and library.switch_off is not None:
                library.switch_off(loaded.model)
            elif not dropout:
                raise UsageFault(
                    f"{target}: the dropout of a {library.imported} model cannot be set from outside",
                    "give the function an argument `dropout`, which it is called with as 0",
                )
            found = library.opened(loaded.model, loaded.loss, batch, training)
            if not found.trained:
                raise UsageFault(
                    f"{target}: the {library.imported} model has no parameter that is trained",
                    "a workload trains something: give a model with arrays of floating point",
                )
            return found
    raise UsageFault(f"{target}: the model is a {_named(type(loaded.model))}", HINT)


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def parts(size: Size, contract: Contract) -> OwnParts:
    """What a stack of JAX steps."""
    assert isinstance(size, OwnSize)
    return OwnParts(size, contract)


class OwnParts:
    """The user's model as a stack of JAX takes a definition; see stacks/jax_nnx.py, whose methods these are.

    Of a pair, the weights, batches and names are the torch side's: ``rules`` say where each tensor lives here.
    """

    def __init__(self, size: OwnSize, contract: Contract) -> None:
        import jax

        self.jax, self.target = jax, size.functions["jax"]
        precision = PRECISIONS[contract.precision]
        loaded = load(size, contract.precision)
        first = next(_draws(loaded, size, contract.precision))
        self.form = Form.of(first)
        self.shapes_of_batch = {n: a.shape for n, a in self.form.take_apart(first).items()}
        dtype, training = np.dtype(precision.parameters), contract.region != "forward"
        self.raises = dtype == np.float64
        keeps = size.drops_out or takes(self.target, "dropout")
        self.function = functional(loaded, self.target, _cast(first, dtype), training, keeps)
        if precision.compute != precision.parameters:
            self._check_casts(contract.precision)
        self._drawn = tuple(
            {_path(n): _cast(a, dtype) for n, a in arrays.items()}
            for arrays in (self.function.trained, self.function.state)
        )
        self.optimizer = loaded.optimizer
        self._check_optimizer(size)
        self.rules = self._rules(size)

    def _check_casts(self, precision: str) -> None:
        """Keras has a policy for it (``_keras_casts``); elsewhere a model's layers are told, by its function."""
        if self.function.library == "keras" or takes(self.target, "compute"):
            return
        raise UsageFault(
            f"{self.target}: JAX has no autocast, so only the model itself can compute in {precision}",
            "give the function an argument `compute`: it is called with the name of the dtype of products' operands, "
            '"bfloat16", for the layers to take (`dtype=` in Flax); or compare in fp32',
        )

    def _check_optimizer(self, size: OwnSize) -> None:
        other = "" if size.other is None else size.other.optimizer
        if size.other is not None and bool(other) != (self.optimizer is not None):
            mine = "one" if self.optimizer is not None else "none"
            raise UsageFault(
                f"{self.target} gives {mine} optimizer of its own and {size.functions['torch']} {other or 'none'}",
                "give both their optimizer, or neither: then AdamW with the same settings trains both",
            )
        if self.optimizer is None:
            return
        first = self.jax.tree.leaves(self.optimizer.init(self._drawn[0]))
        if any(np.any(np.asarray(leaf)) for leaf in first):
            raise UsageFault(
                f"{self.target}: its optimizer does not start from zeros",
                "a run is repeated from its start by zeroing the optimizer's state, which is right for optax.sgd, adam "
                "and adamw with plain numbers as settings",
            )

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that a weight map must know of this side: parameters, and state of floating point."""
        both = [(self.function.trained, True), (self.function.state, False)]
        return tuple(
            Tensor(n, tuple(a.shape), self.function.owners.get(n, ""), trained)
            for arrays, trained in both
            for n, a in arrays.items()
            if _is_float(a)
        )

    def _rules(self, size: OwnSize) -> tuple[WeightRule, ...]:
        if not size.is_pair:
            return tuple(WeightRule(t.name, _path(t.name)) for t in self.tensors())
        if size.other is None:  # before the torch side was made: shapes are known, and what a plan needs
            return ()
        file = Path(self.target.rpartition(":")[0]).expanduser().resolve()
        table = getattr(load_file(file), "weights", None)
        return map_weights(size.other.tensors, self.tensors(), table if isinstance(table, Mapping) else None)

    # As stacks/jax_nnx.py ----------------------------------------------------------------------------------------

    def shapes(self) -> tuple[Any, Any]:
        """(parameters, the rest). The user's function has drawn them already."""
        return self.drawn()

    def drawn(self) -> tuple[Any, Any]:
        # Copies: a step donates what it is given.
        return tuple(self.jax.tree.map(lambda a: a.copy(), part) for part in self._drawn)  # type: ignore[return-value]

    def loss(self, params: Any, rest: Any, batch: Any) -> tuple[Any, tuple[Any, Any]]:
        return (raised(self._loss) if self.raises else self._loss)(params, rest, batch)

    def _loss(self, params: Any, rest: Any, batch: Any) -> tuple[Any, tuple[Any, Any]]:
        trained, state = ({joined_path(p): a for p, a in part.items()} for part in (params, rest))
        found, after = self.function.run(trained, state, self.form.put_together(batch))
        value, outputs = value_and_outputs(found)
        # What a library widened or narrowed on its way goes back to what it was, or a second step would compile again.
        kept = {
            _path(n): a.astype(state[n].dtype) if _is_float(a) else a for n, a in after.items() if n in state
        }
        return value, (outputs, kept)

    def leaves(self, state: Any) -> Iterator[tuple[Location, Any]]:
        yield from state.items()

    def filled(self, state: Any, value_of: Callable[[Location, Any], Any]) -> Any:
        return {path: value_of(path, array) for path, array in state.items()}

    def arranged(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return entries.arranged(batch, self.form.travelling, self.shapes_of_batch, self.target)


def batch(size: Size, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The next batch of the user's stream, with numpy's and Python's generators seeded from ``rng``. Random keys of JAX
    are the user's own: a function that fixes its key gives the same batch every time, and the audit says so."""
    seed = int(rng.integers(2**31))
    _seed(seed)
    key = str(size)
    if key not in _STREAMS:
        _STREAMS[key] = _draws(load(size), size)
        _seed(seed)
    found = next(_STREAMS[key])
    return Form.of(found).take_apart(found)


_STREAMS: dict[str, Iterator[Any]] = {}


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # a file may draw from the legacy generator
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(seed)


def _draws(loaded: Loaded, size: Size, precision: str = "fp32") -> Iterator[Any]:
    return draws(loaded.batch, lambda: load(size, precision).batch)


def _path(name: str) -> Location:
    return tuple(name.split("."))


def joined_path(path: Location) -> str:
    """The inverse of splitting a name."""
    return ".".join(str(p) for p in path)


def _is_float(array: Any) -> bool:
    import jax.numpy as jnp

    return jnp.issubdtype(array.dtype, jnp.floating)


def _cast(tree: Any, dtype: np.dtype) -> Any:
    """Every array of floating point in ``dtype``; what is no array as it is."""
    import jax
    import jax.numpy as jnp

    def one(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if hasattr(leaf, "dtype") and _is_float(leaf) else leaf

    return jax.tree.map(one, tree)
