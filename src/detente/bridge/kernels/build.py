"""The extension that holds our kernels: built once per machine and release, with the compiler that torch.compile needs
as well, and registered with JAX's CPU backend. Where there is no compiler, or no BLAS to be had, steps run without."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jaxlib
import torch

from detente.bridge.folder import trusted, users
from detente.bridge.kernels.products import TARGET, rewrite
from detente.bridge.kernels.worth import WINS, lead

VARIABLE = "DETENTE_KERNELS"
SOURCE = Path(__file__).with_name("product.cc")
FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared")
COMPILERS = ("c++", "g++", "clang++")
SECONDS = 120
# Of the BLAS: the product, and how many threads one thread's products take.
_BLAS = ("sgemm_", "MKL_Set_Num_Threads_Local")
_BUILDING = threading.Lock()


@dataclass(frozen=True)
class Kernels:
    """The extension as it is loaded. ``why`` is empty, or says why there is none."""

    why: str = ""
    library: Any = None

    def calls(self) -> int:
        """How often a product was called in this process."""
        return int(self.library.detente_matmul_calls()) if self.library is not None else 0


@functools.cache
def kernels() -> Kernels:
    """Built, loaded and registered; asked once per process. Never raises."""
    if os.environ.get(VARIABLE) == "0":
        return Kernels(f"{VARIABLE} is 0")
    if jax.default_backend() != "cpu":
        return Kernels(f"steps run on {jax.default_backend()}")
    try:
        library = _loaded()
        found = lead(_place()) if os.environ.get(VARIABLE) != "1" else WINS
    except AttributeError as error:
        return Kernels(f"this torch gives no product to call: {error}")
    except (OSError, subprocess.SubprocessError) as error:
        return Kernels(f"the extension cannot be built here: {_told(error)}")
    except Exception as error:  # a release of JAX's that writes programs otherwise
        return Kernels(f"products cannot be called with jax {jax.__version__}: {_told(error)}")
    if found < WINS:
        return Kernels(
            f"XLA's own products are as fast on this machine (its time is {found:.2f} of the calls')"
        )
    return Kernels(library=library)


@functools.cache
def _loaded() -> Any:
    """The extension, registered: once per process, because JAX takes no second one of the same name. Raises
    AttributeError where torch has no such function, OSError and SubprocessError where nothing can be built."""
    blas = [_address(name) for name in _BLAS]
    library = ctypes.CDLL(str(_built()))
    library.detente_matmul_by.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.detente_matmul_calls.argtypes = ()
    library.detente_matmul_calls.restype = ctypes.c_int64
    library.detente_matmul_by(*blas)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.detente_matmul), platform="cpu")
    return library


def begin() -> None:
    """Build what is not there yet, beside what comes first: a capture takes as long, on another core."""
    if os.environ.get(VARIABLE) != "0" and jax.default_backend() == "cpu":
        threading.Thread(target=_beforehand, daemon=True).start()


def _beforehand() -> None:
    with contextlib.suppress(Exception):  # whoever needs it tries again, and is told
        _built()


def called(module: Any) -> int | None:
    """How many products of a lowered step (an MLIR module, changed in place) became calls; None where there is nothing
    to call."""
    return len(rewrite(module)) if not kernels().why else None


def _address(name: str) -> int:
    """Where a function of torch's libraries lies, which are loaded already."""
    library = ctypes.CDLL(str(Path(str(torch.__file__)).parent / "lib" / "libtorch_cpu.so"))
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _built() -> Path:
    """The extension's file, built where it is not there yet. Raises OSError and SubprocessError."""
    compiler = os.environ.get("CXX") or next((c for c in COMPILERS if shutil.which(c)), "")
    if not compiler:
        raise OSError(f"no compiler is here ({', '.join(COMPILERS)}, or $CXX)")
    text = repr((SOURCE.read_bytes(), FLAGS, compiler, jaxlib.__version__))
    name = f"kernels-{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    done = _place() / name
    with _BUILDING:
        if not done.exists():
            fresh = done.with_name(f".{name}.{os.getpid()}")
            command = [*compiler.split(), *FLAGS, f"-I{jax.ffi.include_dir()}", str(SOURCE), "-o", str(fresh)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
            fresh.replace(done)
    return done


def _place() -> Path:
    """The machine's own folder, whatever folder a program is kept in: what is built and measured here is no program's.
    Where no folder can be had it is one of this user's beside other temporary files. Raises OSError."""
    for place in (users() / "kernels", Path(tempfile.gettempdir()) / f"detente-kernels-{os.geteuid()}"):
        if trusted(place):
            return place
    raise OSError(f"nobody else may write to the folder of an extension: {place}")


def _told(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    return next((line.strip() for line in said.splitlines() if "error" in line), said.strip())[:200]
