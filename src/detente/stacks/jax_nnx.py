"""A workload's definition in Flax NNX, as the parts that a jitted step works on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from detente.records.contract import Contract
from detente.records.precision import PRECISIONS
from detente.workloads.named_calls import named_nnx
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size, Workload

Path = tuple[str | int, ...]


class NnxParts:
    """``module.build`` split into parameters and the rest.

    rules      where every canonical tensor lives
    optimizer  the definition's own; None, as the contract's is taken
    """

    def __init__(self, workload: Workload, size: Size, contract: Contract, scan: bool) -> None:
        from flax import nnx

        self.nnx = nnx
        self.definition = importlib.import_module(workload.definitions["flax"])
        self.rules: tuple[WeightRule, ...] = tuple(self.definition.weights(size, scan))
        self.optimizer: Any = None
        precision = PRECISIONS[contract.precision]
        self._training = contract.region != "forward"
        self._build = partial(
            self.definition.build,
            size,
            parameters=precision.parameters,
            compute=precision.compute,
            scan=scan,
        )

    def shapes(self) -> tuple[Any, Any]:
        """(parameters, the rest), shapes alone: drawing weights that nobody reads compiles a program for each shape,
        3 s for a feed-forward layer."""
        return self._split(self.nnx.eval_shape(self._build))

    def drawn(self) -> tuple[Any, Any]:
        """(parameters, the rest) with the definition's own first weights."""
        return self._split(self._build())

    def _split(self, module: Any) -> tuple[Any, Any]:
        module.train() if self._training else module.eval()
        self._graphdef, params, rest = self.nnx.split(module, self.nnx.Param, ...)
        return params, rest

    def loss(self, params: Any, rest: Any, batch: Any) -> tuple[Any, tuple[Any, Any]]:
        """(loss, (outputs, the rest afterwards))."""
        module = self.nnx.merge(self._graphdef, params, rest, copy=True)
        with named_nnx(module):
            loss, outputs = self.definition.loss(module, batch)
        _, _, rest = self.nnx.split(module, self.nnx.Param, ...)
        return loss, (outputs, rest)

    def leaves(self, state: Any) -> Iterator[tuple[Path, Any]]:
        """(path, array) of everything in one of the two."""
        for path, variable in self.nnx.to_flat_state(state):
            yield path, _value(variable)

    def filled(self, state: Any, value_of: Callable[[Path, Any], Any]) -> Any:
        """The state with every array replaced by ``value_of(path, array)``."""
        flat = self.nnx.to_flat_state(state)
        return self.nnx.from_flat_state([(p, v.replace(value_of(p, _value(v)))) for p, v in flat])

    def arranged(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch as ``loss`` takes it."""
        return dict(batch)


def _value(variable: Any) -> Any:
    return variable.get_value() if hasattr(variable, "get_value") else variable.value
