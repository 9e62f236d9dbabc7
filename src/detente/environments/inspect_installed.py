"""Look into an environment from outside, with its own interpreter: what is installed, what is broken, what imports.

An installation that was killed leaves distributions whose metadata is there and whose files are not; an installer
takes those for installed. So every file that a distribution says it has is looked for.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from detente.environments.installer import clean_environment
from detente.records.fault import MachineFault

_LOOK = r"""
import importlib.metadata as metadata, json, sys
installed, broken = {}, []
for found in metadata.distributions():
    name = found.metadata["Name"] if found.metadata is not None else None
    if not name:
        continue
    installed[name] = found.version
    files = found.files
    if files is None or any(not f.locate().exists() for f in files if f.suffix != ".pyc"):
        broken.append(name)
print(json.dumps({"python": sys.version.split()[0], "installed": installed, "broken": broken}))
"""
_IMPORT = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"


@dataclass(frozen=True)
class Inspection:
    """``installed`` name -> version; ``broken`` names of distributions with missing files."""

    python: str
    installed: dict[str, str]
    broken: tuple[str, ...]


def inspect_environment(python: Path, environ: dict[str, str]) -> Inspection:
    """Raises MachineFault when the interpreter does not run."""
    try:
        found = subprocess.run(
            [str(python), "-I", "-c", _LOOK],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env=clean_environment(environ),
        )
        data = json.loads(found.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise MachineFault(
            f"{python} does not run: {error}", "remove the environment and add it again"
        ) from error
    return Inspection(data["python"], dict(sorted(data["installed"].items())), tuple(sorted(data["broken"])))


def check_imports(python: Path, modules: tuple[str, ...], environ: dict[str, str]) -> None:
    """Raises MachineFault with the last line of what went wrong when one of them does not import."""
    try:
        found = subprocess.run(
            [str(python), "-I", "-c", _IMPORT, *modules],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=clean_environment(environ),
        )
    except subprocess.TimeoutExpired as error:
        raise MachineFault(
            f"importing {', '.join(modules)} took more than 300 s", "run the same command again"
        ) from error
    if found.returncode != 0:
        last = (found.stderr.strip().splitlines() or ["no message"])[-1]
        raise MachineFault(
            f"the environment is installed, but {', '.join(modules)} do not import: {last}",
            "detente stacks remove NAME, then add it again; if that does not help, the message names what is missing",
        )
