"""A captured loss or gradient as one executable, without an optimizer: the regions ``forward`` and
``gradient``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.lower.dtypes import torchs_gradient
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.program.captured import graph_of, lowerable
from detente.bridge.program.program import Program, shape_of
from detente.bridge.random.keys import step_key
from detente.bridge.state.place import Placed, lent, shapes_of, to_jax


@dataclass
class Region:
    """``region(placed) -> (loss, results by name)``: the aux outputs (a mapping) of a forward region, the
    gradients of a gradient region (parameters by name, batch entries as ``batch:NAME``). Buffers that the
    module writes are carried from call to call. Draws no random numbers: the key is that of step 0.

    Nothing is updated, so that weights are read where they lie: on a CPU they are the module's own memory, and whoever
    writes to the module waits for what was called (``wait``)."""

    module: nn.Module
    program: Program
    lowered: Any
    executable: Any
    aux: Any
    weights: Any
    values: dict[str, Any] = field(default_factory=dict)
    called: list[Any] = field(default_factory=list)  # the losses of calls that may still run

    def load(self) -> None:
        """Take the live module's values. Before the first call, and when a tensor was put in another's place."""
        self.values = {n: lent(t) for n, t in self.weights.tensors.items()}
        self.values |= {n: to_jax(torch.from_numpy(v)) for n, v in self.program.large.items()}

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Of everything that ``load`` takes."""
        large = {n: shape_of(v) for n, v in self.program.large.items()}
        return shapes_of(self.weights.tensors) | large

    def wait(self) -> None:
        """Until no call reads the module's memory."""
        jax.block_until_ready(self.called)
        self.called = []

    def argument_bytes(self) -> int:
        return sum(s.size * s.dtype.itemsize for s in self.shapes().values())

    def __call__(self, batch: Placed) -> tuple[Any, dict[str, Any]]:
        loss, results, buffers = self.executable(self.values, batch.arrays)
        self.called = [*(c for c in self.called if not c.is_ready()), loss]
        self.values |= buffers
        if self.aux is not None:
            results = self.aux.build(results)
        return loss, results


def function_of(program: Program, gradient: bool, batch_gradients: Mapping[int, str]) -> Callable[..., Any]:
    """``(values, arrays of the batch) -> (loss, aux, buffers)``, or ``(loss, gradients by name, buffers)``: by the
    parameters, and as ``batch:NAME`` by the batch's arrays at ``batch_gradients``."""

    def forward(values: Any, arrays: Any) -> Any:
        found, (aux, buffers, _) = program.forward(values, arrays, step_key(0, 0))
        return found, aux, buffers

    def backward(values: Any, arrays: Any) -> Any:
        params = {n: values[n] for n in program.connected}

        def of(both: Any) -> Any:
            merged = [both[1].get(i, a) for i, a in enumerate(arrays)]
            return program.forward({**values, **both[0]}, merged, step_key(0, 0))

        parts = (params, {i: arrays[i] for i in batch_gradients})
        (found, (_, buffers, _)), grads = jax.value_and_grad(of, has_aux=True)(parts)
        named = grads[0] | {f"batch:{name}": grads[1][i] for i, name in batch_gradients.items()}
        return found, {name: torchs_gradient(g) for name, g in named.items()}, buffers

    return backward if gradient else forward


def compile_region(
    module: nn.Module,
    loss: Callable[[Any, Any], Any],
    batch: Placed,
    *,
    gradient: bool,
    batch_gradients: Sequence[str] = (),
    matmul: str = "highest",
) -> Region:
    """Capture, lower and compile; nothing is loaded, nor read but what a capture reads. ``batch_gradients`` are
    top-level keys of the batch. Raises Refused."""
    captured = lowerable(capture(module, loss, batch.to_capture))
    program = Program(graph_of(captured), matmul)
    wanted = {f"batch[{name!r}]": name for name in batch_gradients}
    at = {i: wanted[path] for i, path in enumerate(batch.layout.paths) if path in wanted}

    aux = None if gradient else captured.aux
    region = Region(module, program, None, None, aux, captured.weights)
    with torch_numerics(matmul):
        arrays = [shape_of(a) for a in batch.arrays]
        region.lowered = jax.jit(function_of(program, gradient, at)).lower(region.shapes(), arrays)
        region.executable = region.lowered.compile()
    return region
