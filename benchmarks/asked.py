"""What a command of detente tells as JSON: for pages that are made of several sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def asked(*command: str) -> Any:
    """The document of ``detente COMMAND --format json``, run at the repository's root. Ends the script where it told
    none; what it says meanwhile goes to standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "detente", *command, "--format", "json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout.strip():
        raise SystemExit(f"detente {' '.join(command)} told nothing: exit code {done.returncode}")
    return json.loads(done.stdout)
