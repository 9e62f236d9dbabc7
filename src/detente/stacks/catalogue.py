"""The table of stacks, readable without importing a framework.

A stack of your own is ``path/to/file.py:ClassName``; its class attribute ``entry`` (a StackEntry) is optional.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from detente.records.fault import UsageFault
from detente.records.nearest import did_you_mean
from detente.records.users_path import let_import
from detente.stacks.protocol import Stack
from detente.workloads.workload import Workload


@dataclass(frozen=True)
class StackEntry:
    """What the parent must know of a stack.

    target       ``module:Class`` (or ``file.py:Class``)
    definition   which definition of a workload it runs, a key of ``Workload.definitions``: ``torch``, ``flax``, or the
                 name of a framework of your own
    requires     top-level modules that must be importable in its environment
    foreign      frameworks that must not be loaded in its worker (one runtime per process)
    environment  ``default``, or the name of an environment that ``detente stacks add`` makes
    caches       environment variable -> sub-folder of the job's cache folder
    variables    further environment variables that the worker starts with
    recipe       ``whole-step``: the contract's region is one unit. ``out-of-the-box``: the framework's usual
                 recipe, e.g. only the model compiled; the row then stands under the contract ``out-of-the-box``
    compiles     whether there is a compile to speak of, and a cold and a warm cache
    default      part of ``compare`` when no stacks are named
    layers       needs repeated layers in the workload
    layer_s      seconds that compiling a repeated layer takes cold, roughly: to guess with, where nothing was measured
    programs     whether it gives its program away (Running.programs); a stack that does not is not asked
    operators    whether a capture can list its operators: PyTorch's own, which hands no program to anyone
    foreign_program  whether a capture says what each argument of its program is, so that another runtime can run it
    defines      workloads whose definition in this framework the stack brings itself, in its own file
    """

    name: str
    target: str
    what: str
    definition: str
    requires: tuple[str, ...]
    foreign: tuple[str, ...]
    environment: str = "default"
    caches: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    recipe: Literal["whole-step", "out-of-the-box"] = "whole-step"
    compiles: bool = True
    default: bool = True
    layers: bool = False
    layer_s: float = 0.5
    programs: bool = True
    operators: bool = False
    foreign_program: bool = False
    defines: tuple[str, ...] = ()


# GPT-2 Small's 12 layers took Inductor 158 s on two Zen 3 cores, and XLA 17.
_INDUCTOR_LAYER_S = 13.0
# torch's tuning guide asks for an allocator that keeps what is freed (jemalloc, TCMalloc; docs.pytorch.org/tutorials/
# recipes/recipes/tuning_guide.html). glibc's own does so when it is told to: no step pays for fresh pages. GPT-2 Small
# on two Zen 3 cores: eager 1.42 and 1.45 s a step without it, 1.07 and 1.22 with it, 110,000 page faults a step and
# none.
_KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
# XLA's threads allocate as well, and only glibc's main arena keeps blocks of that size: with it alone, GPT-2 Small in
# JAX took 0.56 s a step for 0.60, its layers in a loop 0.57 for 0.64, in torch_xla 0.89 for 0.91 (Zen 5, a block each).
_KEEPS_MEMORY_OF_XLA = {**_KEEPS_MEMORY, "MALLOC_ARENA_MAX": "1"}
_INDUCTOR = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_JAX = {"JAX_COMPILATION_CACHE_DIR": "jax"}
# Without these two, JAX keeps only compilations above a second and an entry size, and a second process of a small
# workload would look cold.
_JAX_KEEP = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
_NOT_TORCH = ("jax", "tensorflow", "torch_xla")
_NOT_JAX = ("torch", "tensorflow", "torch_xla")

STACKS: dict[str, StackEntry] = {
    e.name: e
    for e in (
        StackEntry(
            "torch-eager",
            "detente.stacks.torch_eager:TorchEager",
            "PyTorch, eager, with the fused optimizer",
            "torch",
            ("torch",),
            _NOT_TORCH,
            variables=_KEEPS_MEMORY,
            compiles=False,
            programs=False,
            operators=True,
        ),
        StackEntry(
            "torch-eager-default",
            "detente.stacks.torch_eager:TorchEagerDefault",
            "PyTorch, eager, with the optimizer's default implementation",
            "torch",
            ("torch",),
            _NOT_TORCH,
            recipe="out-of-the-box",
            compiles=False,
            default=False,
            programs=False,
            operators=True,
        ),
        StackEntry(
            "torch-compile",
            "detente.stacks.torch_compile:TorchCompile",
            "torch.compile over the whole step, optimizer included",
            "torch",
            ("torch",),
            _NOT_TORCH,
            caches=_INDUCTOR,
            variables=_KEEPS_MEMORY,
            layer_s=_INDUCTOR_LAYER_S,
            programs=False,
            operators=True,
        ),
        StackEntry(
            "torch-compile-model",
            "detente.stacks.torch_compile:TorchCompileModel",
            "torch.compile over the model only, the usual recipe",
            "torch",
            ("torch",),
            _NOT_TORCH,
            caches=_INDUCTOR,
            recipe="out-of-the-box",
            default=False,
            layer_s=_INDUCTOR_LAYER_S,
            programs=False,
            operators=True,
        ),
        StackEntry(
            "jax",
            "detente.stacks.jax_jit:JaxJit",
            "JAX, one jitted and donated step",
            "flax",
            ("jax", "flax", "optax"),
            _NOT_JAX,
            caches=_JAX,
            variables=_JAX_KEEP | _KEEPS_MEMORY_OF_XLA,
            foreign_program=True,
        ),
        StackEntry(
            "jax-scan",
            "detente.stacks.jax_jit:JaxScan",
            "JAX, layers in lax.scan",
            "flax",
            ("jax", "flax", "optax"),
            _NOT_JAX,
            caches=_JAX,
            variables=_JAX_KEEP | _KEEPS_MEMORY_OF_XLA,
            default=False,
            layers=True,
            foreign_program=True,
        ),
        StackEntry(
            "detente",
            "detente.stacks.detente:Detente",
            "the bridge: the PyTorch definition as one XLA program",
            "torch",
            ("torch", "jax"),
            ("tensorflow", "torch_xla"),
            caches=_JAX | {"DETENTE_BRIDGE_CACHE": "bridge"},
            variables=_JAX_KEEP | _KEEPS_MEMORY_OF_XLA,
        ),
        StackEntry(
            "torch-xla",
            "detente.stacks.torch_xla_lazy:TorchXla",
            "PyTorch/XLA, lazy tensors",
            "torch",
            ("torch", "torch_xla"),
            ("jax", "tensorflow"),
            environment="torch-xla",
            variables=_KEEPS_MEMORY_OF_XLA,
            foreign_program=True,
        ),
        StackEntry(
            "torch-xla-compile",
            "detente.stacks.torch_xla_lazy:TorchXlaCompile",
            "PyTorch/XLA, torch_xla.compile over the step",
            "torch",
            ("torch", "torch_xla"),
            ("jax", "tensorflow"),
            environment="torch-xla",
            variables=_KEEPS_MEMORY_OF_XLA,
            default=False,
        ),
    )
}


def maker_of(workload: Workload) -> str:
    """The stack that makes a workload's weights, batches and references: torch-eager, but of a user's model that is of
    JAX alone JAX itself."""
    return "torch-eager" if "torch" in workload.definitions else "jax"


def find_entry(name: str) -> StackEntry:
    """The entry of a stack by name, or of a user's own stack as ``file.py:Class``.

    Raises UsageFault with the nearest name when there is none.
    """
    if name in STACKS:
        return STACKS[name]
    if ".py:" in name:
        # Never by running the file: see own_entry.py.
        from detente.stacks.own_entry import own_entry

        return own_entry(name)
    raise UsageFault(
        f"no stack is called {name!r}" + did_you_mean(name, STACKS),
        "`detente stacks` lists them",
    )


def make_stack(entry: StackEntry) -> Stack:
    """An instance of the entry's class, in a worker: a user's file runs here. Imports no framework."""
    if ".py:" in entry.target:
        return load_class(entry.target)()
    module, _, name = entry.target.partition(":")
    return getattr(importlib.import_module(module), name)()


def load_class(target: str) -> type:
    """The class of ``file.py:ClassName``. Runs the file: only workers do that."""
    file, _, name = target.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageFault(f"no such file: {file}", "a stack of your own is named path/to/file.py:ClassName")
    let_import(path)
    spec = importlib.util.spec_from_file_location(f"detente_user_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise UsageFault(
            f"{file} defines no {name!r}", f"it defines: {', '.join(n for n in vars(module) if n[0] != '_')}"
        )
    return getattr(module, name)
