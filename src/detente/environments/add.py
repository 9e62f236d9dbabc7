"""Make an environment, or finish one that was interrupted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detente.environments.inspect_installed import Inspection, check_imports, inspect_environment
from detente.environments.installer import Installer, choose_installer, filled, run_visibly
from detente.environments.place import (
    RECORD,
    EnvironmentRecord,
    environments_folder,
    folder_of,
    interpreter,
    state_of,
    write_record,
)
from detente.environments.recipe import Recipe, check_machine
from detente.records.fault import MachineFault

# What unpacking needs beyond the finished size: one wheel at a time lies there twice.
_SLACK = 1_000_000_000


@dataclass(frozen=True)
class Plan:
    """What ``add`` would do; shown before anything is done."""

    recipe: Recipe
    folder: Path
    state: str
    installer: Installer
    free: int

    @property
    def nothing_to_do(self) -> bool:
        return self.state == "installed"


def plan(recipe: Recipe) -> Plan:
    """Look, do nothing. Raises MachineFault when this machine cannot have it."""
    check_machine(recipe)
    folder = folder_of(recipe.name)
    return Plan(
        recipe, folder, state_of(recipe.name, recipe.packages), choose_installer(), free_bytes(folder)
    )


def free_bytes(folder: Path) -> int:
    """Free bytes where ``folder`` is or would be."""
    place = folder
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def check_disk(chosen: Plan) -> None:
    """Raises MachineFault when the disk is too small. What an unfinished environment has already counts."""
    have = folder_bytes(chosen.folder) if chosen.folder.exists() else 0
    need = max(0, chosen.recipe.size - have) + _SLACK
    if chosen.free < need:
        raise MachineFault(
            f"{chosen.recipe.name} needs {need / 1e9:.1f} GB more in {chosen.folder}; "
            f"{chosen.free / 1e9:.1f} GB are free",
            "free some disk, or set DETENTE_HOME to a folder on a larger one",
        )


def add(chosen: Plan, tell: Callable[[str], None]) -> EnvironmentRecord:
    """Carry the plan out and return what was made. Interrupted, it can be called again: what is there and whole is
    kept, what is broken is installed again, and an environment whose Python does not run is made anew.

    Raises MachineFault for a full disk, a failing installer, a package that does not import, or another ``add`` that
    is at it; KeyboardInterrupt after the installer has ended.
    """
    check_disk(chosen)
    recipe, folder, installer = chosen.recipe, chosen.folder, chosen.installer
    with _only_one(recipe.name):
        python = interpreter(folder)
        (folder / RECORD).unlink(missing_ok=True)  # unfinished from here on
        if folder.exists() and not _runs(python):
            tell(f"{folder} was left without a working Python: it is made anew")
            shutil.rmtree(folder)
        if not folder.exists():
            tell(f"making a virtual environment in {folder}")
            run_visibly(filled(installer.create, folder, python))
        tell(f"installing {', '.join(recipe.packages)} with {installer.name}")
        install = filled(installer.install, folder, python)
        if recipe.alone:
            install.append("--no-deps")
        run_visibly([*install, *recipe.packages])
        found = inspect_environment(python, dict(os.environ))
        if found.broken:
            tell(f"left half-installed by an earlier try, installed again: {', '.join(found.broken)}")
            pins = [f"{name}=={found.installed[name]}" for name in found.broken]
            run_visibly([*install, *installer.again, *pins])
            found = inspect_environment(python, dict(os.environ))
        _check(recipe, found)
        tell(f"importing {', '.join(recipe.probe)}")
        check_imports(python, recipe.probe, dict(os.environ))
        record = EnvironmentRecord(
            recipe.name,
            time.time(),
            found.python,
            _version(installer, python),
            recipe.packages,
            found.installed,
            folder_bytes(folder),
        )
        write_record(folder, record)
    return record


def _check(recipe: Recipe, found: Inspection) -> None:
    have = {name.lower().replace("_", "-"): version for name, version in found.installed.items()}
    for pin in recipe.packages:
        name, _, wanted = pin.partition("==")
        version = have.get(name.lower().replace("_", "-"))
        # A local build (2.9.0+cpu) of the pinned version is the pinned version.
        if version is None or version.partition("+")[0] != wanted:
            raise MachineFault(
                f"{pin} was asked for, {version or 'nothing'} is installed",
                f"detente stacks remove {recipe.name}, then add it again",
            )
    if found.broken:
        raise MachineFault(
            f"files are missing from {', '.join(found.broken)} even after a second installation",
            f"detente stacks remove {recipe.name}, then add it again; check the disk",
        )


def _runs(python: Path) -> bool:
    try:
        return (
            subprocess.run(
                [str(python), "-I", "-c", ""], timeout=60, check=False, capture_output=True
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _version(installer: Installer, python: Path) -> str:
    command = [*filled(installer.install[:1], python, python)]
    command += ["-m", "pip", "--version"] if installer.name == "pip" else ["--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.split()
    return " ".join(found[:2])


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below a folder; links count nothing."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(place, name))
                total += status.st_size
    return total


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Two processes must not install into one folder; the lock falls with its holder."""
    try:
        environments_folder().mkdir(parents=True, exist_ok=True)
        handle = (environments_folder() / f".{name}.lock").open("w")
    except OSError as error:
        raise MachineFault(
            f"{environments_folder()} cannot be written: {error.strerror}",
            "set DETENTE_HOME to a folder that can",
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MachineFault(
                f"another process is working on the environment {name}", "wait until it is done"
            ) from None
        yield


def remove(name: str) -> int:
    """Delete an environment, whatever state it is in; the bytes that it had. Its record goes first, so that one that
    is being deleted is never taken for a whole one."""
    folder = folder_of(name)
    if not folder.exists():
        return 0
    with _only_one(name):
        size = folder_bytes(folder)
        (folder / RECORD).unlink(missing_ok=True)
        shutil.rmtree(folder)
    return size
