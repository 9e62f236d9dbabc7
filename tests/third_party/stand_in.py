"""A torchvision and a torchaudio that are only there to be imported.

The pinned torch has a CPU build and these have none that fits it. What packages name of them at import (transforms,
a frozen norm) is no part of the models and optimizers that are tried here: each name is a class that raises when it is
used; a name in small letters may also be a module, so it has names of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

NAMES = ("torchvision", "torchaudio")


class Named(type):
    """A member of such a class (an enumeration's) is its name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class Absent(types.ModuleType):
    """Any name is a class that says what is missing."""

    __path__: list[str] = []  # noqa: RUF012  (what makes it a package)
    __version__ = "0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        said = f"{self.__name__}.{name}"
        if name.islower():
            return Absent(said)

        def missing(self: Any, *args: Any, **kwargs: Any) -> None:
            raise ModuleNotFoundError(f"{said} was used, and is not installed")

        return Named(name, (), {"__init__": missing})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ModuleNotFoundError(f"{self.__name__} was used, and is not installed")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        ours = name.partition(".")[0] in self.names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """From now on, for those of the two that are not there."""
    absent = tuple(name for name in NAMES if importlib.util.find_spec(name) is None)
    sys.meta_path.append(Finder(absent))
