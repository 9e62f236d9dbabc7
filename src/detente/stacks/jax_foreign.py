"""Another stack's step on JAX's runtime: its program, as it handed it to its own compiler, compiled and run here.

What is compared is the program's text alone: compiler, runtime, donation and dispatch are those of JAX's own step.
``jax[program=jax]`` is the control, JAX's own program through the same door.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.contract import Contract
from detente.stacks.jax_foreign_private import callable_of
from detente.stacks.jax_form import JaxForm
from detente.stacks.jax_profile import profiled
from detente.stacks.jax_running import captures_of
from detente.stacks.moments import FIRST, gradients_in
from detente.stacks.process_memory import keeps_freed
from detente.stacks.protocol import Arrays, Capture, CompileCount, Unavailable
from detente.stacks.torch_xla_signature import BATCH, SCHEMA, number_of
from detente.stacks.xla_memory import labelled_memory, read_plan
from detente.workloads.names_asked import names_are_asked
from detente.workloads.workload import Workload

_TENSOR = "tensors:"


def program_of(jax: Any, hlo: bytes, platform: str) -> tuple[Any, list[Any], list[Any]]:
    """``callable_of``; raises Unavailable where this jax cannot."""
    try:
        return callable_of(hlo, platform)
    except (RuntimeError, AttributeError, ImportError, TypeError, ValueError, KeyError) as error:
        # What is private of jax moves: then this row is skipped with the reason, and no other.
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Unavailable(f"jax {jax.__version__} cannot run another stack's program: {said}") from error


class ForeignRunning:
    """A train step whose program came from another stack. State is kept under canonical names."""

    def __init__(
        self, stack: Any, workload: Workload, contract: Contract, form: JaxForm, foreign: Mapping[str, str]
    ) -> None:
        import jax

        if contract.region != "train-step":
            raise Unavailable(f"only a whole training step is run by another stack, not a {contract.region}")
        self.jax, self.stack, self.workload, self.contract = jax, stack, workload, contract
        # The program says itself how wide its numbers are; JAX would narrow them.
        jax.config.update("jax_enable_x64", True)
        document = json.loads(Path(foreign["signature"]).read_bytes())
        if document["schema"] != SCHEMA:
            raise Unavailable(
                f"the program's arguments are described as {document['schema']!r}, not {SCHEMA!r}"
            )
        self.arguments: list[dict[str, Any]] = document["arguments"]
        self.results: list[str] = document["results"]
        call, taken, given = program_of(jax, Path(foreign["hlo"]).read_bytes(), stack.device.platform)
        if len(taken) != len(self.arguments) or len(given) != len(self.results):
            raise Unavailable(
                f"the program takes {len(taken)} arrays and gives {len(given)}, and {len(self.arguments)} and "
                f"{len(self.results)} are known"
            )
        self.taken = taken
        self._kept = [k for k, a in enumerate(self.arguments) if a.get("name", BATCH) in self.results]
        donated = tuple(self._kept) if form.donates else ()
        self.donated = donated
        self.call = jax.jit(call, donate_argnums=donated, compiler_options=form.options or None)
        self.alone = jax.jit(call, compiler_options=form.options or None)
        self.state_of: dict[str, Any] = {}
        self.count = 0
        self._example: Any = None
        self._planned: dict[str, float] | None = None

    # The Protocol -------------------------------------------------------------------------------------------

    def load(self, tensors: Arrays) -> None:
        self.count = 0
        for shape, argument in zip(self.taken, self.arguments, strict=True):
            name = argument.get("name", BATCH)
            if name.startswith(BATCH):
                continue
            array = np.zeros(shape.shape, shape.dtype)
            if name.startswith(_TENSOR):
                array = np.array(tensors[name.removeprefix(_TENSOR)], copy=True).astype(shape.dtype)
            self.state_of[name] = self._put(array)

    def place(self, batch: Arrays) -> Any:
        dtypes = {a["name"]: s.dtype for a, s in zip(self.arguments, self.taken, strict=True) if "name" in a}
        placed = {
            n: self._put(np.array(a, copy=True).astype(dtypes.get(BATCH + n, a.dtype)))
            for n, a in batch.items()
        }
        return self.jax.block_until_ready(placed)

    def step(self, batch: Any) -> Any:
        self._example = batch
        self.count += 1
        found = self.call(*self._given(batch, self.state_of, self.count))
        self.state_of |= {n: a for n, a in zip(self.results, found, strict=True) if n in self.state_of}
        return found[self.results.index("loss")], {}

    def synchronise(self, *handles: Any) -> None:
        self.jax.block_until_ready((handles, self.state_of))

    def loss(self, handle: Any) -> float:
        return float(handle[0])

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        return {}

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        """Of the program itself: what its first step leaves in moments that were zero. No program of its own."""
        zero = {
            n: a if n.startswith(_TENSOR) else self.jax.numpy.zeros_like(a) for n, a in self.state_of.items()
        }
        found = dict(zip(self.results, self.alone(*self._given(batch, zero, 1)), strict=True))
        return gradients_in(found, self.workload.optimizer, self._to_host)

    def tensors(self) -> dict[str, np.ndarray]:
        return {
            n.removeprefix(_TENSOR): self._to_host(a)
            for n, a in self.state_of.items()
            if n.startswith(_TENSOR)
        }

    def state(self) -> dict[str, np.ndarray]:
        """Views, where the device is the host: who asks copies them, and a copy of ours would go to fresh pages."""
        held = {n.removeprefix(_TENSOR): np.asarray(a) for n, a in self.state_of.items()}
        return {**held, "step": np.array(float(self.count))}

    def parameter_names(self) -> frozenset[str]:
        """What has a moment is trained."""
        return frozenset(n.partition(":")[2] for n in self.state_of if n.partition(":")[0] in FIRST)

    def compiled(self) -> CompileCount:
        return self.stack.listener.count()

    def memory(self) -> dict[str, int]:
        if self._planned is None and self._example is not None:
            self._planned = read_plan(self._lowered().compile().memory_analysis())
        return labelled_memory(self.stack.device, self._planned or {})

    def devices(self, handle: Any) -> tuple[str, ...]:
        leaves = self.jax.tree.leaves((handle, self.state_of))
        return tuple(sorted({self.stack.platform_of(d) for leaf in leaves for d in leaf.devices()}))

    def practice(self) -> str:
        donated = "state donated" if self.donated else "nothing donated"
        return f"another stack's program on JAX's runtime; one jit, {donated}{keeps_freed()}"

    def plan(self, batch: Arrays) -> dict[str, int]:
        return {}

    def programs(self) -> tuple[Capture, ...]:
        if self._example is None:
            return ()
        lowered = self._lowered()
        found = captures_of("step", lowered, lowered.compile())
        if names_are_asked():
            found += profiled(self.jax, lambda: self.step(self._example))
        return found

    # -----------------------------------------------------------------------------------------------------------

    def _put(self, array: np.ndarray) -> Any:
        return self.jax.device_put(array, self.stack.device)

    def _to_host(self, array: Any) -> np.ndarray:
        return np.array(array, copy=True)

    def _lowered(self) -> Any:
        return self.call.lower(*self._given(self._example, self.state_of, max(self.count, 1)))

    def _given(self, batch: Any, state: Mapping[str, Any], count: int) -> list[Any]:
        """The arguments in order. Numbers that the optimizer computes ahead are computed here, as its host does."""
        found = []
        for shape, argument in zip(self.taken, self.arguments, strict=True):
            name = argument.get("name", "")
            if name.startswith(BATCH):
                found.append(batch[name.removeprefix(BATCH)])
            elif name:
                found.append(state[name])
            else:
                value = number_of(argument, self.workload.optimizer, float(count))
                found.append(np.full(shape.shape, value, shape.dtype))
        return found
