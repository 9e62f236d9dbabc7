"""The one lowering table: operator name -> the function that computes it with JAX.

An entry is ``lower(call, *args, **kwargs)`` where tensors arrive as ``jax.Array`` (tracers) and everything
else as the Python literal that ATen was called with. It returns what ATen returns (an array, or a tuple of
them). The driver casts nothing: an entry must produce ATen's own dtype, given by ``call.out`` (``Aval`` or
tuple).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from detente.bridge.graph import Aval, Node

if TYPE_CHECKING:
    import jax


class Call(Protocol):
    """What an entry may ask of its surroundings."""

    node: Node

    @property
    def out(self) -> Aval | tuple[Aval | None, ...] | None:
        """ATen's result, for shapes and dtypes."""
        ...

    def key(self, offset: int = 0) -> jax.Array:
        """The random key of this call: ``fold_in(step key, node.draw + offset)``. Same key in every form of
        the program. ``offset`` numbers the draws of an operator that makes several (dropout in an LSTM)."""
        ...

    def fault(self, condition: jax.Array, message: str) -> None:
        """Record what torch would have raised: ``condition`` is a bool (any shape) that is True on a fault.
        Reading the loss then raises IndexError (or the exception that ``message`` starts with:
        ``"ValueError: ..."``) and names the user's line."""
        ...

    def run(self, graph: Any, *args: Any) -> tuple[Any, ...]:
        """Lower a sub-graph on these values, here and now (same trace level: not inside ``lax.cond`` or
        ``scan``)."""
        ...

    def function(self, graph: Any) -> Callable[..., tuple[tuple[Any, ...], jax.Array]]:
        """A sub-graph as a pure function, for the bodies of ``lax.cond``, ``lax.scan``, ``while_loop``,
        ``jax.checkpoint``.

        ``f(*args, draw_offset=0) -> (outputs, word)``. ``args`` go to the graph's inputs in order. ``word``
        is the body's own fault word (int32, 0-d): carry it out of the loop (``jnp.minimum`` over iterations)
        and hand it to ``merge``. ``draw_offset`` (int or traced int32) is added to every ``node.draw`` of
        the body, so iteration k of a rolled loop passes ``k * draws_per_iteration`` and repeats the unrolled
        program's numbers.
        """
        ...

    def merge(self, word: jax.Array) -> None:
        """Join the fault word that a ``function`` returned (0-d int32) into this program's."""
        ...


@dataclass(frozen=True)
class Entry:
    """``aware``: it takes and returns values with their channels last (channels_last.py). ``shared``: it is traced once
    for all calls of the same shapes and numbers (sharing.py): many JAX operations of tensors alone, which asks of its
    surroundings what the result is and nothing else."""

    op: str
    lower: Callable[..., Any]
    random: bool = False
    note: str = ""
    aware: bool = False
    shared: bool = False


TABLE: dict[str, Entry] = {}
# The note of an entry that somebody registered by ``detente.extend``.
USERS = "registered by the user"


def lowers(
    *ops: str, random: bool = False, note: str = "", aware: bool = False, shared: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register one function for one or more operators: ``@lowers("aten.add.Tensor", "aten.add.Scalar")``.

    Raises ValueError when an operator already has an entry: two lowerings of one operator would be a silent
    choice.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            if op in TABLE:
                raise ValueError(
                    f"{op} is already lowered by {TABLE[op].lower.__module__}.{TABLE[op].lower.__name__}"
                )
            TABLE[op] = Entry(op, function, random, note, aware, shared)
        return function

    return register
