"""Load ``path/to/file.py:function``."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from detente.records.fault import UsageFault
from detente.records.users_path import let_import
from detente.workloads.own.reached import DIMENSIONS


def call_function(target: str, changed: Mapping[str, Any]) -> Any:
    """What the function returns. The file runs once per process, the function at every call, with what of
    ``changed`` it has arguments for: dimensions, and the dtype of a precision.

    Raises UsageFault when either raises: with the exception, and the line of the user's file where it came from.
    """
    file, _, name = target.rpartition(":")
    path = Path(file).expanduser().resolve()
    try:
        function = getattr(load_file(path), name)
        return function(**_arguments(function, changed))
    except UsageFault:
        raise
    except (Exception, SystemExit) as error:  # a script that reads arguments at its top ends here
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f"{file}:{lines[-1]}" if lines else file
        raise UsageFault(
            f"{where} raised {type(error).__name__}: {error}",
            f"`{name}` must run by itself, without arguments; try it in python first",
        ) from error


def load_file(path: Path) -> ModuleType:
    """The user's file as a module, run once per process."""
    key = f"detente_own_{path.stem}"
    module = sys.modules.get(key)
    if module is not None and getattr(module, "__file__", None) == str(path):
        return module
    let_import(path)
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    return module


def takes(target: str, argument: str) -> bool:
    """Whether the function of a loaded file has such an argument."""
    file, _, name = target.rpartition(":")
    function = getattr(load_file(Path(file).expanduser().resolve()), name)
    return argument in inspect.signature(function).parameters


def _arguments(function: Any, changed: Mapping[str, Any]) -> dict[str, Any]:
    if not changed:
        return {}
    names = inspect.signature(function).parameters
    return {n: changed[d] for n in names if (d := DIMENSIONS.get(n, n)) in changed}
