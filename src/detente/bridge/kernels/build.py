"""The extension that holds our kernels: the file that the installation brought along (extension.py), or one that is
built once per machine and release with the compiler that torch.compile needs as well; registered with JAX's CPU
backend. Where there is neither, or no BLAS to be had, steps run without."""

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
from detente.bridge.kernels import extension, passes
from detente.bridge.kernels.compiler import NATIVE, compiler
from detente.bridge.kernels.products import BF16, F32, TARGET, multiplies, rewrite
from detente.bridge.kernels.targets import OURS, calls_in
from detente.bridge.kernels.trials import CONVOLUTIONS, DECIDED
from detente.bridge.kernels.worth import WINS, leads, processor

VARIABLE = "DETENTE_KERNELS"
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
# What torch was refused, by a release that keeps it; others write it to stderr.
_WORDS = "torch_exception_get_what_without_backtrace"
_BUILDING = threading.Lock()
_MAY: ContextVar[bool] = ContextVar("may_call", default=False)


@dataclass(frozen=True)
class Kernels:
    """The extension as it is loaded. ``why`` is empty, or says why there is none; ``products``: which forms of those of
    float32 it is called for; ``slow``: why the others are not among them."""

    why: str = ""
    library: Any = None
    products: frozenset[str] = frozenset()
    slow: str = ""

    def calls(self) -> int:
        """How often a kernel was called in this process."""
        return int(self.library.detente_calls()) if self.library is not None else 0


@functools.cache
def kernels() -> Kernels:
    """Built, loaded and registered; asked once per process. Never raises."""
    library, why = loaded()
    if why:
        return Kernels(why)
    try:
        found = decided(F32)
    except Exception as error:
        return Kernels(_not_by_this(error))
    won = _winning(found)
    behind = ", ".join(f"{form} {lead:.2f}" for form, lead in found.items() if form not in won)
    slow = (
        f"XLA's own products are as fast on this machine (its time by the calls': {behind})" if behind else ""
    )
    return Kernels(library=library, products=won, slow=slow)


def loaded() -> tuple[Any, str]:
    """The extension, or why there is none. Never raises."""
    if declined():
        return None, f"{VARIABLE} is 0"
    if jax.default_backend() != "cpu":
        return None, f"steps run on {jax.default_backend()}"
    try:
        return _loaded(), ""
    except AttributeError as error:
        return None, f"this torch gives no product to call: {error}"
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"the extension cannot be built here: {_told(error)}"
    except Exception as error:
        return None, _not_by_this(error)


def _not_by_this(error: Exception) -> str:
    """Of a release of JAX's that writes programs otherwise."""
    return f"products cannot be called with jax {jax.__version__}: {_told(error)}"


def decided(of: str, patience: int = 1, again: bool = False) -> dict[str, float]:
    """As measured, or what wins where the user wants calls without a measurement."""
    if wanted():
        return dict.fromkeys(DECIDED[of], WINS)
    return leads(remembering(), of, patience, again)


def remembering() -> Path | None:
    """Where answers are kept; None where there is no folder for them."""
    try:
        return home()
    except OSError:
        return None


def wanted() -> bool:
    """Whether the user wants every call, without a measurement."""
    return os.environ.get(VARIABLE) == "1"


def _winning(found: dict[str, float]) -> frozenset[str]:
    return frozenset(kind for kind, lead in found.items() if lead >= WINS)


@functools.cache
def _loaded() -> Any:
    """The extension, registered: once per process, because JAX takes no second one of the same name. Raises
    AttributeError where torch has no such function, OSError and SubprocessError where nothing can be built."""
    blas = [_address(name) for name in _BLAS]
    library = _opened()
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


def _opened() -> Any:
    if came := _came():
        with contextlib.suppress(OSError):  # made where the system's libraries are newer
            return ctypes.CDLL(str(came))
    return ctypes.CDLL(str(_built()))


@functools.cache
def _convolving() -> tuple[int, ...] | None:
    """Where the functions of convolution.cc's `Torch` lie; None of a torch without them: XLA convolves."""
    try:
        known = (*map(_address, _CONVOLVES), _python("PyGILState_GetThisThreadState"))
    except AttributeError:
        return None
    try:
        return (*known, _address(_WORDS))
    except AttributeError:
        return (*known, 0)


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
        if _came() is None:
            _built()


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """What is traced inside runs here and nowhere else: its lowering may call kernels, where there are any."""
    before = _MAY.set(not kernels().why)
    try:
        yield
    finally:
        _MAY.reset(before)


def may_call(what: str = "") -> bool:
    """Whether what is traced now may call kernels of ours, or those for ``CONVOLUTIONS`` or ``ATTENTION``, which are
    made of the other library's work."""
    return _MAY.get() and (not what or what in _won(what))


def called(module: Any) -> int | None:
    """How many kernels a lowered step (an MLIR module, changed in place) calls, its products made calls; None where
    there is nothing to call."""
    found = kernels()
    if found.why:
        return None
    halves = _won(BF16) if BF16 in multiplies(module) else ()
    rewrite(module, of={F32: found.products, BF16: halves})
    return calls_in(module)


def is_there(of: str) -> bool:
    """Whether this torch has what it takes to call the other library's work."""
    return of != CONVOLUTIONS or _convolving() is not None


@functools.cache
def _won(of: str) -> frozenset[str]:
    """What of this work (trials.py) is worth a call on this machine: asked by the first program that has some."""
    if not is_there(of):
        return frozenset()
    try:
        return _winning(decided(of))
    except Exception:  # as of ``kernels``: whatever speaks against it, XLA has its own
        return frozenset()


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
            passes.make(found.library, key, text, command, home())
    except (OSError, subprocess.SubprocessError):
        return None
    return key


def known(keys: Iterable[int]) -> bool:
    """Whether the loops of a stored program are here; the extension knows them from here on."""
    found = kernels()
    try:
        for key in keys:
            passes.give(found.library, key, home())
    except (OSError, AttributeError):
        return False
    return True


def _address(name: str) -> int:
    """Where a function of torch's libraries lies, which are loaded already."""
    library = ctypes.CDLL(str(Path(str(torch.__file__)).parent / "lib" / "libtorch_cpu.so"))
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _python(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _came() -> Path | None:
    """The file that the installation brought along, if one fits."""
    return extension.shipped(Path(jax.ffi.include_dir()), _flags())


def _flags() -> frozenset[str]:
    """The processor's instructions, as Linux names them."""
    found = next((line.split(":")[1] for line in processor() if line.startswith("flags")), "")
    return frozenset(found.split())


def _built() -> Path:
    """The extension's file for this processor alone, built where it is not there yet. Raises OSError and
    SubprocessError."""
    command = compiler()
    text = repr((extension.texts(), extension.FLAGS, command, jaxlib.__version__, processor()))
    name = f"kernels-{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    with _BUILDING:
        return extension.make(home() / name, command, Path(jax.ffi.include_dir()), NATIVE)


def home() -> Path:
    """The machine's own folder, whatever folder a program is kept in: what is built and measured here is no program's.
    Where no folder can be had it is one of this user's beside other temporary files. Raises OSError."""
    own, place = users(), Path(tempfile.gettempdir()) / f"detente-kernels-{os.geteuid()}"
    if own is not None and trusted(own / "kernels"):
        return own / "kernels"
    if trusted(place):
        return place
    raise OSError(f"nobody else may write to the folder of an extension: {place}")


def _told(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    return next((line.strip() for line in said.splitlines() if "error" in line), said.strip())[:200]
