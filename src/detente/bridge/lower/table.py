"""The one lowering table: operator name -> the function that computes it with JAX.

An entry is ``lower(call, *args, **kwargs)`` where tensors arrive as ``jax.Array`` (tracers) and everything else
as the Python literal that ATen was called with. It returns what ATen returns (an array, or a tuple of them).
The driver casts nothing: an entry must produce ATen's own dtype, given by ``call.out`` (``Aval`` or tuple).
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

    def key(self) -> jax.Array:
        """The random key of this call: ``fold_in(step key, node.draw)``. Same key in every form of the program."""
        ...

    def fault(self, condition: jax.Array, message: str) -> None:
        """Record what torch would have raised: ``condition`` is a 0-d bool that is True on a fault. Reading the
        loss then raises IndexError (or what ``message`` starts with) and names the user's line."""
        ...

    def run(self, graph: Any, *args: Any) -> tuple[Any, ...]:
        """Lower a sub-graph (a branch of ``torch.cond``, a body of ``scan``) on these values."""
        ...


@dataclass(frozen=True)
class Entry:
    op: str
    lower: Callable[..., Any]
    random: bool = False
    note: str = ""


TABLE: dict[str, Entry] = {}


def lowers(
    *ops: str, random: bool = False, note: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register one function for one or more operators: ``@lowers("aten.add.Tensor", "aten.add.Scalar")``.

    Raises ValueError when an operator already has an entry: two lowerings of one operator would be a silent choice.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            if op in TABLE:
                raise ValueError(
                    f"{op} is already lowered by {TABLE[op].lower.__module__}.{TABLE[op].lower.__name__}"
                )
            TABLE[op] = Entry(op, function, random, note)
        return function

    return register
