"""JAX: one jitted, donated step over a Flax NNX definition and an optax optimizer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from detente.records.arm import Arm
from detente.records.chip import Chip
from detente.records.contract import Contract
from detente.records.precision import PRECISIONS
from detente.stacks.best_seconds import best_seconds
from detente.stacks.chips import device_of
from detente.stacks.installed_versions import installed_versions
from detente.stacks.jax_events import CompileListener
from detente.stacks.jax_form import FORMS, Forms, JaxForm, form_of
from detente.stacks.jax_running import JaxRunning
from detente.stacks.protocol import Arrays, Unavailable
from detente.workloads.workload import Size, Workload


class JaxJit:
    """jax.jit over the whole region."""

    scan: ClassVar[bool] = False
    own: ClassVar[str] = "jax"
    # Files of another stack's program, in a worker that is to run it.
    foreign: dict[str, str] = {}  # noqa: RUF012  # replaced, never written into
    running: ClassVar[type[JaxRunning]] = JaxRunning
    forms: ClassVar[Forms] = FORMS

    def start(self, device: str, precision: str, threads: int) -> str:
        import jax

        self.jax = jax
        if device != "auto":
            jax.config.update("jax_platforms", device)
        # Also off again: a process that makes references goes from one to the other.
        jax.config.update("jax_enable_x64", precision == "fp64")
        try:
            # By name, not only by the flag: a process whose backends exist already ignores the flag.
            self.device = jax.devices(None if device == "auto" else device)[0]
        except (RuntimeError, AssertionError) as error:
            # An assertion without a word is what JAX says of a platform of which no plugin is installed.
            why = str(error).splitlines() or ["JAX finds no such device here"]
            raise Unavailable(f"{device}: {why[0]}") from None
        platform = self.platform_of(self.device)
        if precision == "tf32" and platform != "cuda":
            raise Unavailable(f"tf32: this device ({platform}) has no TF32 unit")
        self.compute = PRECISIONS[precision].compute
        # On recent GPUs the default for fp32 products is TF32: fp32 must be asked for.
        jax.config.update(
            "jax_default_matmul_precision", "tensorfloat32" if precision == "tf32" else "highest"
        )
        self.listener = CompileListener()
        return platform

    def platform_of(self, device: Any) -> str:
        if device.platform == "gpu":
            return "rocm" if "rocm" in getattr(device.client, "platform_version", "").lower() else "cuda"
        return device.platform

    def versions(self) -> dict[str, str]:
        return installed_versions("jax", "jaxlib", "flax", "optax", "numpy")

    def compiler(self) -> str:
        """The release of jaxlib, as what is loaded says it: who asked for another one reads here whether it is."""
        import jaxlib

        return jaxlib.__version__

    def threads(self) -> dict[str, int]:
        # XLA's CPU client takes its pool size from the affinity at import; nothing reads it back by name.
        return {"affinity": len(os.sched_getaffinity(0))}

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        jnp = self.jax.numpy
        x, y = (self.jax.device_put(np.asarray(v), self.device).astype(self.compute) for v in (a, b))
        return np.asarray(self.jax.jit(jnp.matmul)(x, y)).astype(np.float64)

    def product_seconds(self, m: int, k: int, n: int, repeats: int) -> float:
        jnp = self.jax.numpy
        rng = np.random.default_rng(0)
        x, y = (
            self.jax.device_put(rng.random(s, dtype=np.float32), self.device).astype(self.compute)
            for s in ((m, k), (k, n))
        )
        product = self.jax.jit(jnp.matmul)
        return best_seconds(lambda: product(x, y), self.jax.block_until_ready, repeats)

    def copy_seconds(self, elements: int, repeats: int) -> float:
        x = self.jax.device_put(np.ones(elements, np.float32), self.device)
        copy = self.jax.jit(lambda a: -a)
        return best_seconds(lambda: copy(x), self.jax.block_until_ready, repeats)

    def plan(self, workload: Workload, size: Size, contract: Contract, batch: Arrays) -> dict[str, int]:
        # Held: whoever runs the step holds its executable (60 to 170 MB of an unrolled model), and the plan's process
        # stands for theirs.
        self.planned = self.build(workload, size, contract)
        return self.planned.plan(batch)

    def plans_on(
        self, chip: Chip, workload: Workload, size: Size, contract: Contract, batch: Arrays
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """``(form, plan)`` on a chip that is not here (stacks/chips.py). Nothing is drawn, loaded or placed."""
        yield from self.build(workload, size, contract).plans_on(chip, device_of(chip), batch)

    def build(self, workload: Workload, size: Size, contract: Contract) -> JaxRunning:
        if "flax" not in workload.definitions:
            raise Unavailable(f"{workload.name} has no definition in Flax")
        if self.scan and workload.layers(size) < 2:
            raise Unavailable(f"{workload.name} has no repeated layers to scan")
        return self.running(self, workload, size, contract, self.scan)

    def build_under(self, arm: Arm, workload: Workload, size: Size, contract: Contract) -> Any:
        """The same under an arm. Raises Unavailable for one that this step cannot be built under."""
        from detente.stacks.jax_outside import OutsideRunning

        program = arm.get("program")
        if arm.release and arm.release != self.compiler():
            raise Unavailable(
                f"jaxlib {arm.release} was asked for, and this environment has {self.compiler()}"
            )
        form = form_of("jax", arm.only(f for f in arm.factors if f != "program"), self.forms)
        if program not in (None, self.own):
            return self._foreign(program or "", workload, size, contract, form)
        form = replace(form, exported=program is not None)
        scan = self.scan if form.scan is None else form.scan
        if scan and workload.layers(size) < 2:
            raise Unavailable(f"{workload.name} has no repeated layers to scan")
        if form.outside and contract.region != "train-step":
            raise Unavailable(f"a {contract.region} has no optimizer that could be outside of it")
        kind = OutsideRunning if form.outside else self.running
        return kind(self, workload, size, contract, scan, form)

    def _foreign(
        self, program: str, workload: Workload, size: Size, contract: Contract, form: JaxForm
    ) -> Any:
        """Another stack's program on this one's runtime."""
        from detente.stacks.jax_export import FORM
        from detente.stacks.jax_exported import ExportedRunning
        from detente.stacks.jax_foreign import ForeignRunning

        if form.outside or form.scan is not None:
            raise Unavailable(f"{program}'s program is one: neither its loop nor its optimizer can be moved")
        if not self.foreign:
            raise Unavailable(f"the program of {program} was not captured")
        if FORM in self.foreign:
            running = ExportedRunning(self, workload, size, contract, self.scan, form)
            return running.take(self.foreign[FORM], program)
        return ForeignRunning(self, workload, contract, form, self.foreign)


class JaxScan(JaxJit):
    """The same, with the definition's layers in ``lax.scan``."""

    scan = True
    own = "jax-scan"
