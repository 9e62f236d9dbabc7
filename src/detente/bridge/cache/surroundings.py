"""What a program depends on beside its model, its loss and its batch: the flags of torch and JAX, what the user put in
the place of functions of torch's, the lowerings that were registered, and the update that the optimizer was traced
to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from detente.bridge.graph import Graph, Where
from detente.bridge.kernels.build import VARIABLE as KERNELS
from detente.bridge.live.python import users
from detente.bridge.lower.table import TABLE, USERS
from detente.bridge.optim.program import Trace
from detente.bridge.program.xla_options import options as xla_options

# Where code finds functions of torch's.
_TORCHS = (torch, nn.functional, torch.Tensor, torch.linalg, torch.special, torch.fft, nn.init)
_OF_ALL_MODULES = ("_global_forward_hooks", "_global_forward_pre_hooks")
_OF_JAX = (
    "jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision", "jax_numpy_dtype_promotion",
    "jax_enable_x64", "jax_debug_nans", "jax_disable_jit", "jax_numpy_rank_promotion",
)  # fmt: skip


def flags() -> tuple[Any, ...]:
    """What a forward may ask torch for, and what decides how its operators are taken apart."""
    backends = torch.backends
    autocast = [
        (kind, torch.is_autocast_enabled(kind) and str(torch.get_autocast_dtype(kind)))
        for kind in ("cpu", "cuda")
    ]
    return (
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.is_autocast_cache_enabled(),
        autocast,
        [*_settings(backends.cudnn), *_settings(backends.mkldnn), *_settings(backends.mha)],
        [
            *_settings(backends.cuda.matmul),
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
        ],
        [backends.cuda.mem_efficient_sdp_enabled(), backends.cuda.cudnn_sdp_enabled()],
        [(name, getattr(jax.config, name, None)) for name in _OF_JAX],
        sorted(xla_options().items()),
        os.environ.get(KERNELS, ""),
    )


def _settings(of: Any) -> Iterator[tuple[str, Any]]:
    for name in (
        *("enabled", "benchmark", "deterministic", "allow_tf32", "fp32_precision"),
        *("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"),
    ):
        try:
            found = getattr(of, name)
        except (AttributeError, RuntimeError):
            continue
        if isinstance(found, bool | int | str | tuple):
            yield name, found


def patched() -> dict[str, Any]:
    """What is called and is the user's in the place of torch's functions, and hooks on every module. What a program was
    found to ask of any library is in its file (``beside.py``)."""
    found = {
        f"{getattr(owner, '__name__', owner)}.{name}": value
        for owner in _TORCHS
        for name, value in sorted(vars(owner).items())
        if callable(value) and users(value)
    }
    return found | {name: dict(vars(nn.modules.module)[name]) for name in _OF_ALL_MODULES}


def lowerings() -> dict[str, Any]:
    """What ``detente.extend`` was given."""
    return {op: entry.lower for op, entry in sorted(TABLE.items()) if entry.note == USERS}


def update_of(rule: Any) -> str:
    """The update that an optimizer was traced to, whatever its code, its attributes and the branches of its numbers
    made of it. Every parameter must have one of its own."""
    inner = rule.rule
    numbers = {id(p): i for i, p in enumerate({id(p): p for p in inner.programs.values()}.values())}
    lines = [repr([(g.names, g.literals, g.members, sorted(g.written)) for g in inner.groups])]
    lines.append(repr([(name, numbers[id(p)]) for name, p in inner.programs.items()]))
    for program in {id(p): p for p in inner.programs.values()}.values():
        births = sorted((program.births or {}).items())
        lines.append(repr((program.param, program.hyper, program.births is None)))
        lines += [f"{key} begins as {_graph(graph)}" for key, graph in births]
        lines += [_trace(trace) for trace in (program.step, program.first) if trace is not None]
    return "\n".join(lines)


def _trace(trace: Trace) -> str:
    return repr((trace.leaves, [(path.outcomes, _graph(path.graph)) for path in trace.paths]))


def _graph(graph: Graph) -> str:
    """The same wherever its code lies."""
    nodes = [replace(node, where=Where()) for node in graph.nodes]
    held = [
        (n, str(a.dtype), a.shape, hashlib.blake2b(np.ascontiguousarray(a).tobytes()).hexdigest())
        for n, a in sorted(graph.constants.items())
    ]
    return repr((graph.inputs, nodes, graph.outputs, held))
