"""A torchvision that is only there to be imported.

The pinned torch has a CPU build and torchvision has none that fits it. What packages name of it at import (transforms,
a frozen norm) is no part of the models and optimizers that are tried here: each name is a class that raises when it is
used.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

NAME = "torchvision"


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

        def missing(self: Any, *args: Any, **kwargs: Any) -> None:
            raise ModuleNotFoundError(f"{NAME} is not installed, and {name} was used")

        return Named(name, (), {"__init__": missing})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        ours = name == NAME or name.startswith(f"{NAME}.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """From now on, where the real one is not there."""
    if importlib.util.find_spec(NAME) is None:
        sys.meta_path.append(Finder())
