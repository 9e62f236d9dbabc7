"""Programs compiled for a chip that is not here, and the compiler's own plan of their memory."""

from __future__ import annotations

import re
from typing import Any

from detente.records.chip import Chip
from detente.stacks.protocol import Unavailable
from detente.stacks.xla_memory import read_plan


def device_of(chip: Chip) -> Any:
    """One such chip, as a device that programs are compiled for and nothing can be put on.

    Raises Unavailable where the compiler's plug-in is missing or does not know the chip.
    """
    from jax.experimental import topologies

    options: dict[str, Any] = (
        {"chips_per_host_bounds": (1, 1, 1), "topology_name": chip.topology}
        if chip.platform == "tpu"
        else {"topology": chip.topology, "target_config": target_config(chip), "topology_name": ""}
    )
    try:
        return topologies.get_topology_desc(platform=chip.platform, **options).devices[0]
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unavailable(f"nothing is compiled for {chip.name} here: {said}") from error


def target_config(chip: Chip) -> str:
    """A GPU as ``GpuTargetConfigProto`` text."""
    major, minor = chip.capability
    facts = "\n".join(f"  {name}: {value}" for name, value in chip.target.items())
    # The accelerated features of Hopper are a dialect of their own (sm_90a).
    features = "\n    feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
    return (
        f"gpu_device_info {{\n{facts}\n"
        f"  cuda_compute_capability {{\n    major: {major}\n    minor: {minor}{features}\n  }}\n"
        '  device_vendor: "NVIDIA Corporation"\n  driver_version: "13.0.0"\n  runtime_version: "12.8.0"\n'
        '  compile_time_toolkit_version: "12.8.0"\n}\n'
        'platform_name: "CUDA"\ndnn_version_info {\n  major: 9\n  minor: 10\n  patch: 0\n}\n'
        f'device_description_str: "{chip.what}"\n'
    )


def there(device: Any, tree: Any) -> Any:
    """The shapes of ``tree`` as arguments on ``device``."""
    import jax
    from jax.sharding import SingleDeviceSharding

    here = SingleDeviceSharding(device)
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here), tree)


def plan_on(chip: Chip, device: Any, jitted: Any, *arguments: Any) -> dict[str, int]:
    """Bytes of a program on the chip: ``arguments``, ``temporary`` and ``peak``, by the compiler's plan. Of a program
    that the compiler refuses for its size ``peak`` alone, which it tells."""
    try:
        lowered = jitted.trace(*there(device, arguments)).lower(lowering_platforms=(chip.platform,))
        plan = read_plan(lowered.compile().memory_analysis())
    except Exception as error:
        wanted = refused_for_size(str(error))
        if wanted is None:
            raise
        return {"peak": wanted}
    if not plan:
        raise Unavailable(f"the compiler for {chip.name} tells no plan of memory")
    return {
        "arguments": int(plan["argument_bytes"]),
        "temporary": int(plan["temp_bytes"]),
        "peak": int(plan["argument_bytes"] + plan["output_bytes"] + plan["temp_bytes"] - plan["alias_bytes"]),
    }


# libtpu's words: of 0.0.42 and 0.0.52, and of older ones. Both name everything that would be held.
_WANTED = (
    re.compile(r"\(([0-9.]+)([KMG])\) exceeds available HBM"),
    re.compile(r"Used ([0-9.]+)([KMG]) of [0-9.]+[KMG] hbm"),
)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def refused_for_size(text: str) -> int | None:
    """The bytes that a program would hold of which a compiler says that it is too large; None of other errors."""
    found = next(filter(None, (words.search(text) for words in _WANTED)), None)
    return int(float(found.group(1)) * _UNITS[found.group(2)]) if found else None
