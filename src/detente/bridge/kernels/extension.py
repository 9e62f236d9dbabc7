"""The extension's sources, how they are compiled, and the files that an installation brings along.

An installation (hatch_build.py) compiles them for a level of the processor's instructions, so that it can be copied to
another machine: where none of its files fits, or none is there, the extension is built at its first use for this
processor alone (build.py). A file's name says what it was made of: one that is older than its sources, or was made for
another JAX's interface, is not looked at.
"""

from __future__ import annotations

import hashlib
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from detente.bridge.kernels.compiler import FLAGS, compiled, compiler

SOURCES = tuple(
    Path(__file__).with_name(f"{name}.cc")
    for name in (
        "product",
        "depthwise",
        "attention",
        "convolution",
        "update",
        "threefry",
        "batch_norm",
        "layer_norm",
    )
)
HEADERS = tuple(Path(__file__).with_name(f"{name}.h") for name in ("call", "shared"))
# Of JAX's, among its headers: all of it that is read.
INTERFACE = "xla/ffi/api/c_api.h"
FOLDER = Path(__file__).with_name("shipped")
SECONDS = 120
# By what a compiler calls it, the best first: what it has beyond the level behind, as Linux names instructions. From
# the x86-64 psABI's table of microarchitecture levels.
LEVELS = {
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    "x86-64-v3": frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
}


def texts() -> list[bytes]:
    """What the extension is made of."""
    return [file.read_bytes() for file in (*SOURCES, *HEADERS)]


def make(done: Path, command: str, include: Path, machine: str) -> Path:
    """The file ``done``, compiled where it is not there yet. Raises OSError and SubprocessError."""
    arguments = (*FLAGS, f"-march={machine}", "-std=c++17", f"-I{include}", "-x", "c++", "-")
    # One unit: what all of them read is read once.
    whole = "".join(f'#include "{file}"\n' for file in SOURCES)
    return compiled(done, command, arguments, SECONDS, whole)


def shipped(include: Path, flags: frozenset[str], folder: Path | None = None) -> Path | None:
    """The file that came along and fits a processor with these instructions; None where none does."""
    levels = list(LEVELS)
    for k, level in enumerate(levels):
        if flags.issuperset(frozenset().union(*(LEVELS[each] for each in levels[k:]))):
            file = (folder or FOLDER) / _name(include, level)
            if file.is_file():
                return file
    return None


def ship(include: Path, folder: Path = FOLDER) -> list[Path]:
    """Compile what an installation brings along, and remove what was there before. Nothing is made, and nothing is
    wrong, where there are other processors or no headers of JAX's. Raises OSError and SubprocessError."""
    if platform.machine() != "x86_64" or not (include / INTERFACE).is_file():
        return []
    command = compiler()
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor() as pool:
        made = list(
            pool.map(lambda level: make(folder / _name(include, level), command, include, level), LEVELS)
        )
    for old in set(folder.glob("kernels-*.so")) - set(
        made
    ):  # and nothing that another installation is writing
        old.unlink(missing_ok=True)
    return made


def _name(include: Path, level: str) -> str:
    made_of = repr((texts(), FLAGS, (include / INTERFACE).read_bytes()))
    return f"kernels-{level}-{hashlib.sha256(made_of.encode()).hexdigest()[:24]}.so"
