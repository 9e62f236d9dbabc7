"""What can be told of Python's values and code without running any: which values hold nothing else, what code names,
and whether a file is a library's."""

from __future__ import annotations

import functools
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

# values that hold nothing else
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    slice,
    range,
)
MADE_BY_FX = "<eval_with_key>"  # the file of code that torch.fx, and so a capture, writes
# The bridge's own code is none of the user's, installed or not; a cached program's name tells of it.
_LIBRARIES = (
    str(Path(torch.__file__ or "torch").parent),
    str(Path(types.__file__ or "types").parent),
    str(Path(__file__).parents[1]),
)
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
# Installed packages whose code and globals are a library's: torch, JAX, what they stand on, and what models and loops
# are usually made of. A release of one is told by its files' sizes and times. Any other that is installed counts like
# the user's own: research code is installed as well, and its settings move.
_COMPUTES = frozenset(
    {
        # what computes
        "torch", "torchgen", "functorch", "torchvision", "torchaudio", "torchtext", "torch_xla", "torchax", "triton",
        "jax", "jaxlib", "jax_plugins", "flax", "optax", "haiku", "equinox", "chex", "orbax", "etils", "jmp",
        "jaxtyping", "optree", "ml_dtypes", "opt_einsum", "tensorstore", "keras", "tensorflow", "numpy", "scipy",
        "sympy", "mpmath", "pandas", "pyarrow", "networkx", "sklearn", "PIL",
        "cv2", "h5py", "numba", "einops", "einx", "nvidia",
        # what models and loops are made of
        "detente", "transformers", "tokenizers", "huggingface_hub", "safetensors", "accelerate", "peft", "diffusers",
        "datasets", "timm", "sentence_transformers", "lightning", "lightning_fabric", "pytorch_lightning",
        "lightning_utilities", "torchmetrics", "torch_geometric", "ignite", "bitsandbytes", "xformers",
    }
)  # fmt: skip
# What runs Python, configures and tells: no number follows from what stands in it, and that moves by itself.
_TELLS = frozenset(
    {
        "pytest", "_pytest", "pluggy", "xdist", "execnet", "hypothesis", "_hypothesis_pytestplugin", "IPython",
        "ipykernel", "traitlets", "matplotlib", "tqdm", "rich", "click", "absl", "yaml", "regex", "jinja2", "packaging",
        "filelock", "fsspec", "requests", "attr", "attrs", "pydantic", "pydantic_core", "omegaconf", "hydra", "msgpack",
        "setuptools", "pkg_resources", "_distutils_hack", "pip", "typing_extensions", "annotated_types", "psutil",
        "wandb", "beartype", "typeguard", "loguru", "urllib3", "charset_normalizer", "certifi", "idna",
    }
)  # fmt: skip
_KNOWN = _COMPUTES | _TELLS


def names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def in_library(file: str | None) -> bool:
    """Whether code of this file is a library's: Python's own, or that of an installed package which is known."""
    return file is None or _in_library(file)


@lru_cache(maxsize=8192)
def _in_library(file: str) -> bool:
    installed = _INSTALLED.match(file)
    if installed is not None:
        return installed[1].partition(".")[0] in _KNOWN
    return file.startswith("<frozen ") or any(part in file for part in _LIBRARIES)


def of_library(name: Any) -> bool:
    """Whether a module of Python's, by its name, is a library's. What was typed in (a notebook, ``python -c``,
    ``exec``) has no file, and is the user's; Python's own in C have none either, nor has what is no name (a class of
    Cython's says so by a descriptor)."""
    if not isinstance(name, str):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    top = name.partition(".")[0]
    if file is not None and (top == name or os.path.isabs(file)):  # torch.ops says "_ops.py"
        return in_library(file)
    if top in sys.stdlib_module_names:
        return True
    of_top = getattr(sys.modules.get(top), "__file__", None)
    return of_top is not None and in_library(of_top)


def imported(names: Iterable[str], known: Mapping[str, Any]) -> Iterator[types.ModuleType]:
    """The user's modules that a function imports when it runs. ``names``: those in its code; ``known``: its globals."""
    package = known.get("__package__") or ""
    inside = [package.rsplit(".", depth)[0] for depth in range(package.count(".") + 1)] if package else []
    for name in sorted(names):
        for full in (name, *(f"{outer}.{name}" for outer in inside)):
            module = sys.modules.get(full)
            if type(module) is types.ModuleType and known.get(name) is not module and not of_library(full):
                yield module


def of_python(name: str) -> bool:
    """Whether a module, by its name, is Python's own."""
    return name.partition(".")[0] in sys.stdlib_module_names


def of_their_class(kind: type) -> bool:
    """Whether objects of a class are made from Python's own or numpy's, whose methods ask them for attributes. Of what
    only says what a class is (``abc.ABC``, ``typing.Generic``, ``enum.Enum``) that is nothing."""
    modules: list[Any] = [part.__module__ for part in kind.__mro__]  # of which a metaclass may say anything
    named = {module for module in modules if isinstance(module, str)} - _SAYS
    return any(of_python(module) or module.partition(".")[0] == "numpy" for module in named)


_SAYS = frozenset({"builtins", "abc", "typing", "enum", "collections.abc"})


def tells(name: str) -> bool:
    """Whether a module, by its name, is of a library that runs Python, configures or tells."""
    return name.partition(".")[0] in _TELLS


def users_function(value: Any) -> bool:
    """Whether this is a function that the user wrote, wherever it stands now and whatever name it was given
    (``functools.wraps(F.relu)``), or one that torch.fx made of it."""
    if not isinstance(value, types.FunctionType):
        return False
    file, module = value.__code__.co_filename, value.__module__ or ""
    if file.startswith(MADE_BY_FX):
        return True
    if in_library(file) or module.startswith("detente."):
        return False
    return file[:1] != "<" or not of_library(module)


def users(value: Any) -> bool:
    """Whether what was found in a library's place is the user's: a function or a class of theirs, one that a library's
    decorator was given, an object of a class of theirs, or an object that is called with arguments of theirs."""
    if isinstance(value, (*PLAIN, types.ModuleType)):
        return False
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        return users(value.__func__) or (isinstance(value, types.MethodType) and users(value.__self__))
    if isinstance(value, property):
        return any(users(part) for part in (value.fget, value.fset, value.fdel) if part is not None)
    if isinstance(value, functools.partial | functools.partialmethod):
        return True
    kind = value if isinstance(value, type | types.FunctionType) else type(value)
    if users_function(value):
        return True
    module: Any = kind.__module__  # which a metaclass may say anything in the place of
    return isinstance(module, str) and not of_library(module) and not module.startswith("detente.")
