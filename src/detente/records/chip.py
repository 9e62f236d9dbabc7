"""Chips for which a program is compiled without one being here: what there is of memory, and what a compiler must know.

Facts of the GPUs: OpenXLA's ``xla/backends/gpu/target_config/specs`` (h100_sxm, h200, a100_sxm_80). Of the TPUs: what
libtpu 0.0.42 itself says that a program may use (``exceeds available HBM (31.25G)``), read by compiling one that is too
large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from detente.records.fault import UsageFault
from detente.records.nearest import did_you_mean


@dataclass(frozen=True)
class Chip:
    """One chip.

    platform   XLA's: ``tpu`` or ``cuda``
    memory     bytes that programs may hold on it
    topology   the name under which the compiler knows one of it
    variables  what a process must find set before the compiler's plug-in is loaded
    target     of a GPU: its properties, by the names of ``GpuDeviceInfoProto``
    """

    name: str
    what: str
    platform: str
    memory: int
    topology: str
    variables: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, int | float] = field(default_factory=dict)
    capability: tuple[int, int] = (0, 0)


def _tpu(name: str, what: str, topology: str, accelerator: str, gibibytes: float) -> Chip:
    # Without these, libtpu looks for a TPU's metadata server, and waits for it.
    variables = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": accelerator,
    }
    return Chip(name, what, "tpu", int(gibibytes * 2**30), topology, variables)


# What the generations have in common.
_GPU = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "threads_per_core_limit": 2048,
    "block_dim_limit_x": 2147483647,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}
_HOPPER = {
    "shared_memory_per_core": 233472,
    "shared_memory_per_block_optin": 232448,
    "core_count": 132,
    "fpus_per_core": 128,
    "l2_cache_size": 52428800,
    "clock_rate_ghz": 1.98,
}
_AMPERE = {
    "shared_memory_per_core": 167936,
    "shared_memory_per_block_optin": 166912,
    "core_count": 108,
    "fpus_per_core": 64,
    "l2_cache_size": 41943040,
    "clock_rate_ghz": 1.41,
}


def _gpu(
    name: str,
    what: str,
    memory: int,
    bandwidth: int,
    capability: tuple[int, int],
    more: Mapping[str, int | float],
) -> Chip:
    target = {**_GPU, **more, "device_memory_size": memory, "memory_bandwidth": bandwidth}
    # Autotuning runs candidates on a device.
    variables = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
    return Chip(name, what, "cuda", memory, "1x1x1", variables, target, capability)


CHIPS: dict[str, Chip] = {
    c.name: c
    for c in (
        _tpu("tpu-v5e", "TPU v5e, 16 GB", "v5e:1x1", "v5litepod-1", 15.75),
        _tpu("tpu-v6e", "TPU v6e, 32 GB", "v6e:1x1", "v6e-1", 31.25),
        _gpu("a100", "A100 SXM, 80 GB", 85100068864, 2039040000000, (8, 0), _AMPERE),
        _gpu("h100", "H100 SXM, 80 GB", 84942979072, 3352320000000, (9, 0), _HOPPER),
        _gpu("h200", "H200, 141 GB", 151397597184, 4800000000000, (9, 0), _HOPPER),
    )
}


def find_chip(name: str) -> Chip:
    """Raises UsageFault with the nearest name when there is none."""
    if name in CHIPS:
        return CHIPS[name]
    raise UsageFault(
        f"no chip is called {name!r}" + did_you_mean(name, CHIPS, cutoff=0.3),
        f"these can be compiled for: {', '.join(CHIPS)}",
    )
