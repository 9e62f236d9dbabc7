"""The extension that holds our kernels: built once per machine and release, with the compiler that torch.compile needs
as well, and registered with JAX's CPU backend. Where there is no compiler, or no BLAS to be had, steps run without."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jaxlib
import torch

from detente.bridge.folder import trusted, users
from detente.bridge.kernels import passes
from detente.bridge.kernels.compiler import FLAGS, compiled, compiler
from detente.bridge.kernels.products import BF16, F32, TARGET, multiplies, rewrite
from detente.bridge.kernels.targets import OURS, calls_in
from detente.bridge.kernels.worth import CONVOLUTIONS, WINS, lead, processor

VARIABLE = "DETENTE_KERNELS"
SOURCES = tuple(
    Path(__file__).with_name(f"{name}.cc")
    for name in ("product", "depthwise", "attention", "convolution", "update")
)
HEADERS = tuple(Path(__file__).with_name(f"{name}.h") for name in ("call", "shared"))
SECONDS = 120
# Of the BLAS: the product, that of bfloat16 numbers, and how many threads one thread's products take.
_BLAS = ("sgemm_", "gemm_bf16bf16f32_", "MKL_Set_Num_Threads_Local")
# Of torch's operators, by the C functions that its compiled models call, and of OpenMP, which they compute with: in the
# order of convolution.cc's `Torch`.
_CONVOLVES = (
    "aoti_torch_create_tensor_from_blob",
    "aoti_torch_cpu_convolution",
    "aoti_torch_cpu_convolution_backward",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_strides",
    "aoti_torch_dtype_float32",
    "aoti_torch_device_type_cpu",
    "omp_set_num_threads",
    "omp_get_max_threads",
)
_BUILDING = threading.Lock()
_MAY: ContextVar[frozenset[str]] = ContextVar("may_call", default=frozenset())


@dataclass(frozen=True)
class Kernels:
    """The extension as it is loaded. ``why`` is empty, or says why there is none; ``slow``: why products are not among
    what it is called for."""

    why: str = ""
    library: Any = None
    slow: str = ""

    def calls(self) -> int:
        """How often a kernel was called in this process."""
        return int(self.library.detente_calls()) if self.library is not None else 0


@functools.cache
def kernels() -> Kernels:
    """Built, loaded and registered; asked once per process. Never raises."""
    if declined():
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
    slow = f"XLA's own products are as fast on this machine (its time is {found:.2f} of the calls')"
    return Kernels(library=library, slow=slow if found < WINS else "")


@functools.cache
def _loaded() -> Any:
    """The extension, registered: once per process, because JAX takes no second one of the same name. Raises
    AttributeError where torch has no such function, OSError and SubprocessError where nothing can be built."""
    blas = [_address(name) for name in _BLAS]
    library = ctypes.CDLL(str(_built()))
    library.detente_matmul_by.argtypes = (ctypes.c_void_p,) * len(_BLAS)
    library.detente_calls.argtypes = ()
    library.detente_calls.restype = ctypes.c_int64
    library.detente_matmul_by(*blas)
    if (functions := _convolving()) is not None:
        library.detente_convolve_by.argtypes = (ctypes.c_void_p * len(functions),)
        library.detente_convolve_by.restype = None
        library.detente_convolve_by((ctypes.c_void_p * len(functions))(*functions))
    for target in (TARGET, *OURS):
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return library


@functools.cache
def _convolving() -> tuple[int, ...] | None:
    """Where the functions of convolution.cc's `Torch` lie; None of a torch without them: XLA convolves."""
    try:
        return (*map(_address, _CONVOLVES), _python("PyGILState_GetThisThreadState"))
    except AttributeError:
        return None


def declined() -> bool:
    """Whether the user wants no kernels but XLA's own."""
    return os.environ.get(VARIABLE) == "0"


def decline() -> None:
    """As ``DETENTE_KERNELS=0``, from here on and for the whole process."""
    os.environ[VARIABLE] = "0"
    kernels.cache_clear()


def begin() -> None:
    """Build what is not there yet, beside what comes first: a capture takes as long, on another core."""
    if not declined() and jax.default_backend() == "cpu":
        threading.Thread(target=_beforehand, daemon=True).start()


def _beforehand() -> None:
    with contextlib.suppress(Exception):  # whoever needs it tries again, and is told
        _built()


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """What is traced inside runs here and nowhere else: its lowering may call kernels, where there are any."""
    found = kernels()
    before = _MAY.set(
        frozenset() if found.why else frozenset({"kernels"} if found.slow else {"kernels", "products"})
    )
    try:
        yield
    finally:
        _MAY.reset(before)


def may_call(what: str = "kernels") -> bool:
    """Whether what is traced now may call ``kernels`` of ours, those that are made of the other library's ``products``,
    or its ``convolutions``."""
    if what == CONVOLUTIONS:
        return "kernels" in _MAY.get() and _wins(CONVOLUTIONS)
    return what in _MAY.get()


def called(module: Any) -> int | None:
    """How many kernels a lowered step (an MLIR module, changed in place) calls, its products made calls; None where
    there is nothing to call."""
    found = kernels()
    if found.why:
        return None
    wanted = {F32} if not found.slow else set()
    if BF16 in multiplies(module) and _wins(BF16):
        wanted.add(BF16)
    rewrite(module, of=wanted)
    return calls_in(module)


@functools.cache
def _wins(what: str) -> bool:
    """Whether the other library's products of bfloat16 numbers, or its convolutions, are worth a call on this machine:
    asked by the first program that has some."""
    if what == CONVOLUTIONS and _convolving() is None:
        return False
    try:
        return os.environ.get(VARIABLE) == "1" or lead(_place(), what) >= WINS
    except Exception:  # as of ``kernels``: whatever speaks against it, XLA has its own
        return False


def loop(text: str) -> int | None:
    """The key of an update's loop (bridge/optim/one_pass.py), which the extension knows from here on; None where there
    is no extension, or it cannot be compiled."""
    found = kernels()
    if found.why:
        return None
    try:
        command = compiler()
        key = passes.key_of(text, command, processor())
        with _BUILDING:  # programs are made in other threads, too
            passes.make(found.library, key, text, command, _place())
    except (OSError, subprocess.SubprocessError):
        return None
    return key


def known(keys: Iterable[int]) -> bool:
    """Whether the loops of a stored program are here; the extension knows them from here on."""
    found = kernels()
    try:
        for key in keys:
            passes.give(found.library, key, _place())
    except (OSError, AttributeError):
        return False
    return True


def _address(name: str) -> int:
    """Where a function of torch's libraries lies, which are loaded already."""
    library = ctypes.CDLL(str(Path(str(torch.__file__)).parent / "lib" / "libtorch_cpu.so"))
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _python(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _built() -> Path:
    """The extension's file, built where it is not there yet. Raises OSError and SubprocessError."""
    command = compiler()
    texts = [file.read_bytes() for file in (*SOURCES, *HEADERS)]
    text = repr((texts, FLAGS, command, jaxlib.__version__, processor()))
    name = f"kernels-{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    arguments = (*FLAGS, "-std=c++20", f"-I{jax.ffi.include_dir()}", "-x", "c++", "-")
    # One unit: what all of them read is read once.
    whole = "".join(f'#include "{file}"\n' for file in SOURCES)
    with _BUILDING:
        return compiled(_place() / name, command, arguments, SECONDS, whole)


def _place() -> Path:
    """The machine's own folder, whatever folder a program is kept in: what is built and measured here is no program's.
    Where no folder can be had it is one of this user's beside other temporary files. Raises OSError."""
    home, place = users(), Path(tempfile.gettempdir()) / f"detente-kernels-{os.geteuid()}"
    if home is not None and trusted(home / "kernels"):
        return home / "kernels"
    if trusted(place):
        return place
    raise OSError(f"nobody else may write to the folder of an extension: {place}")


def _told(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    return next((line.strip() for line in said.splitlines() if "error" in line), said.strip())[:200]
