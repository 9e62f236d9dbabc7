"""The C++ compiler of this machine, and files that it makes: whole, or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
# As exact as C++ is: the last two say that nobody reads errno or the processor's flags.
FLAGS = ("-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
# The processor that this runs on, as a compiler calls it.
NATIVE = "native"


def compiler() -> str:
    """The command. Raises OSError where there is none."""
    found = os.environ.get("CXX") or next((c for c in COMPILERS if shutil.which(c)), "")
    if not found:
        raise OSError(f"no compiler is here ({', '.join(COMPILERS)}, or $CXX)")
    return found


def compiled(done: Path, command: str, arguments: Sequence[str], seconds: float, text: str = "") -> Path:
    """The file ``done``, compiled where it is not there yet; ``text`` is what is read where an argument is ``-``.
    Raises OSError and SubprocessError."""
    if not done.exists():
        fresh = done.with_name(f".{done.name}.{os.getpid()}")
        whole = [*command.split(), *arguments, "-o", str(fresh)]
        subprocess.run(whole, check=True, capture_output=True, text=True, timeout=seconds, input=text)
        fresh.replace(done)
    return done
