"""What an interpreter has installed: everything, because a stack may load any of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from detente.environments.installer import clean_environment
from detente.records.fault import MachineFault

# A build from a checkout keeps its version while its content changes: direct_url.json holds the commit.
_ASK = r"""
import importlib.metadata as metadata, json, sys
found = set()
for one in metadata.distributions():
    name = one.metadata["Name"] if one.metadata is not None else None
    if name:
        found.add((name.lower().replace("_", "-"), one.version or "", one.read_text("direct_url.json") or ""))
print(json.dumps([sys.implementation.name, sys.version, sorted(found)]))
"""


def installed_hash(python: str) -> str:
    """SHA-256 over the interpreter's version and the names and versions of all distributions that it finds.

    The interpreter that runs this one sees what its workers see, the user's PYTHONPATH included; a foreign one sees its
    own environment alone. Raises MachineFault when it does not run.
    """
    return _asked(python, _stamp(python))


def _stamp(python: str) -> tuple[tuple[str, int], ...]:
    """When something was last installed: every installation makes or removes an entry of one of these folders. A
    notebook lives through upgrades."""
    folders = (
        [Path(p) for p in sys.path]
        if python == sys.executable
        else Path(python).parent.parent.glob("lib*/python*/site-packages")
    )
    return tuple((str(f), f.stat().st_mtime_ns) for f in folders if f.is_dir())


@cache
def _asked(python: str, stamp: tuple[tuple[str, int], ...]) -> str:
    own = python == sys.executable
    try:
        told = subprocess.run(
            [python, "-P", "-c", _ASK] if own else [python, "-I", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env=None if own else clean_environment(dict(os.environ)),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineFault(
            f"{python} does not run: {error}", "remove the environment and add it again"
        ) from error
    return hashlib.sha256(json.dumps(json.loads(told.stdout)).encode()).hexdigest()
