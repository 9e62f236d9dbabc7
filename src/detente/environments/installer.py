"""venv and pip, or uv where it is present: the two commands that make an environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from detente.records.fault import MachineFault

Runner = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Installer:
    """``create`` and ``install`` are argument lists with ``{folder}`` and ``{python}`` to fill in."""

    name: str
    create: tuple[str, ...]
    install: tuple[str, ...]
    again: tuple[str, ...]


PIP = Installer(
    "pip",
    # -P: a file of the current folder is no library of Python's.
    (sys.executable, "-P", "-m", "venv", "{folder}"),
    ("{python}", "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
    ("--force-reinstall", "--no-deps"),
)


def choose_installer() -> Installer:
    """uv when it is on the path (it is faster and keeps one copy of a wheel), else venv and pip."""
    uv = shutil.which("uv")
    if uv is None:
        return PIP
    return Installer(
        "uv",
        (uv, "venv", "--python", sys.executable, "--allow-existing", "{folder}"),
        (uv, "pip", "install", "--python", "{python}"),
        ("--reinstall", "--no-deps"),
    )


def filled(command: Sequence[str], folder: Path, python: Path) -> list[str]:
    return [part.format(folder=folder, python=python) for part in command]


def run_visibly(command: Sequence[str]) -> None:
    """Run with its output on our standard error (standard output belongs to results). Raises MachineFault with the
    last lines when it fails. On Ctrl-C the child, which got it too, is waited for, so that nothing is left running
    in a folder that a second try will use."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=clean_environment(os.environ),
    ) as child:
        assert child.stdout is not None
        tail: list[str] = []
        try:
            for line in child.stdout:
                if not line.startswith("Requirement already satisfied"):
                    sys.stderr.write(line)
                tail = [*tail[-5:], line.strip()]
        except KeyboardInterrupt:
            _end(child)
            raise
    if child.returncode != 0:
        said = " / ".join(line for line in tail if line)[-400:]
        raise MachineFault(
            f"`{' '.join(command[:4])} ...` ended with exit code {child.returncode}: {said}", _advice(said)
        )


def _end(child: subprocess.Popen[str]) -> None:
    try:
        child.wait(timeout=20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


_ADVICE = (
    (("No space left", "Disk quota"), "free some disk, then run the same command again: it goes on where it stopped"),
    (("No matching distribution", "no version of", "not found in the package registry"),
     "the package index that this machine uses has no such version; see `pip config list` or the UV_ variables"),
    (("ensurepip", "python3-venv"),
     "the Python of this machine comes without venv: install its python3-venv package, or uv"),
    (("Temporary failure", "timed out", "Connection", "resolve", "NewConnectionError"),
     "the package index cannot be reached; when it can, run the same command again: it goes on where it stopped"),
)  # fmt: skip


def _advice(text: str) -> str:
    for words, advice in _ADVICE:
        if any(word.lower() in text.lower() for word in words):
            return advice
    return "when that is mended, run the same command again: it goes on where it stopped"


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what would let the new environment see our own packages or another environment."""
    hidden = (
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "__PYVENV_LAUNCHER__",
    )
    return {k: v for k, v in environ.items() if k not in hidden}
