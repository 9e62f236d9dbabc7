"""Which commit of the bridge a record is of."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable

BRIDGE = "src/detente/bridge"


def commit_of_bridge() -> str:
    """The last that changed the bridge, which is what the long suites try; ``+``: with other changes of it beside."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no", "--", BRIDGE)
    return git("log", "-1", "--format=%h", "--abbrev=7", "--", BRIDGE) + ("+" if dirty else "")


def told(commits: Iterable[str]) -> str:
    """A page's sentence about the commits of its records."""
    counts = Counter(commits).most_common()
    if len(counts) == 1:
        return f"All at one commit: {counts[0][0]} is the last that changed `{BRIDGE}`."
    listed = ", ".join(f"{commit or 'none named'} ({count})" for commit, count in counts)
    return f"Last commits that changed `{BRIDGE}`: {listed}."
