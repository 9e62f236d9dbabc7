"""What one side of a pair tells the other, which runs in a process that cannot import its framework."""

from __future__ import annotations

from dataclasses import dataclass

from detente.workloads.own.mapping.tensors import Tensor


@dataclass(frozen=True)
class Side:
    """The torch side of a pair, as the JAX side reads it.

    tensors    every parameter and floating-point buffer, with the class of the module that owns it
    optimizer  class of the optimizer that the user's function made; empty where it made none
    """

    tensors: tuple[Tensor, ...]
    optimizer: str = ""
