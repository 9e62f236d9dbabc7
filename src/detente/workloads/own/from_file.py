"""Load ``path/to/file.py:function``."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from detente.records.fault import UsageFault
from detente.workloads.own.loaded import Loaded, check


def load_file(target: str) -> Loaded:
    """Run the file once per process and the function at every call.

    Raises UsageFault when either raises: with the exception, and the line of the user's file where it came from.
    """
    file, _, name = target.rpartition(":")
    path = Path(file).expanduser().resolve()
    key = f"detente_own_{path.stem}"
    try:
        module = sys.modules.get(key)
        if module is None or getattr(module, "__file__", None) != str(path):
            # Behind everything else, so that a neighbour called random.py does not replace the library's.
            if str(path.parent) not in sys.path:
                sys.path.append(str(path.parent))
            spec = importlib.util.spec_from_file_location(key, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[key] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[key]
                raise
        found = getattr(module, name)()
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f"{file}:{lines[-1]}" if lines else file
        raise UsageFault(
            f"{where} raised {type(error).__name__}: {error}",
            f"`{name}` must run by itself, without arguments; try it in python first",
        ) from error
    return check(found, target)
