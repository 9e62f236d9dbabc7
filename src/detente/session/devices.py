"""Whether a device can be there for a stack, without importing a framework: for a plan. A worker that runs asks the
framework itself, and is right where this is wrong."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from detente.stacks.catalogue import StackEntry


@dataclass(frozen=True)
class Device:
    """What must be there: device files of this machine (any of ``files``), torch built with ``torch`` (a name in its
    version file; empty: torch never has it), and a distribution for JAX whose name begins with one of ``jax``."""

    files: tuple[str, ...]
    torch: str
    jax: tuple[str, ...]


DEVICES: dict[str, Device] = {
    "cuda": Device(("nvidia[0-9]*", "dxg"), "cuda", ("jax-cuda",)),
    "rocm": Device(("kfd",), "hip", ("jax-rocm",)),
    "tpu": Device(("accel*", "vfio/[0-9]*"), "", ("libtpu",)),
}


def absent_reason(entry: StackEntry, device: str, files: Path = Path("/dev")) -> str:
    """Why this stack has no such device here, as far as files and installed packages tell; empty when it may have."""
    if device in ("auto", "cpu"):
        return ""
    if "torch_xla" in entry.requires:
        known = "tpu"
        if device != known:
            return f"{device}: PyTorch/XLA runs on cpu and tpu"
    if device not in DEVICES:
        return _plugin_reason(entry, device)
    wanted = DEVICES[device]
    if not any(path for pattern in wanted.files for path in files.glob(pattern)):
        return (
            f"{device}: this machine shows no such device ({', '.join(f'{files}/{f}' for f in wanted.files)})"
        )
    if "jax" in entry.requires:
        return (
            "" if _installed(wanted.jax) else f"{device}: JAX needs {wanted.jax[0]}*, which is not installed"
        )
    if "torch_xla" in entry.requires:
        return ""
    if not wanted.torch:
        return f"{device}: PyTorch itself has no such device; torch-xla has"
    return "" if _torch_built_with(wanted.torch) else f"{device}: torch here is built without it"


def _plugin_reason(entry: StackEntry, device: str) -> str:
    if "jax" not in entry.requires:
        return f"{device}: PyTorch has no device of this name; there are cpu, cuda, rocm"
    names = sorted({e.name for e in importlib.metadata.entry_points(group="jax_plugins")})
    if any(device.lower() in name.lower() for name in names):
        return ""
    return f"{device}: no PJRT plugin of JAX has this name; there are {', '.join(names) or 'none'}"


def _installed(starts: tuple[str, ...]) -> bool:
    names = {(d.metadata["Name"] or "").lower() for d in importlib.metadata.distributions()}
    return any(name.startswith(starts) for name in names)


@functools.cache
def _torch_built_with(name: str) -> bool:
    """torch/version.py says ``cuda: Optional[str] = '12.8'`` or ``None``; finding it imports nothing."""
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if version is None or not version.is_file():
        return False
    return bool(re.search(rf"^{name}\b[^=\n]*=\s*['\"]", version.read_text(), re.MULTILINE))
