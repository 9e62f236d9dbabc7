"""XLA without LLVM's own optimisation and with its older fusion code, for tests that compile much and run little: it
saves two thirds of a program's compile time or more and changes no HLO. The programs of sessions, the museum and the
first example are compiled as a user's are."""

from __future__ import annotations

import os
from importlib.metadata import version

OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
# An unknown flag ends the process, and of these some releases have no other code.
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 12):
    OPTIONS["xla_cpu_use_fusion_emitters"] = False
FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in OPTIONS.items())


def compile_quickly() -> None:
    """For this process alone: XLA reads its flags once, and what is started from here never sees them. A program that
    this process puts into the bridge's cache is not to be loaded by another: jax 0.10 then looks for functions that
    LLVM did not emit (``NOT_FOUND: Function … not found``)."""
    import jax

    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{before or ''} {FLAGS}".strip()
    jax.devices()
    if before is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = before
