"""Which commit a record is of."""

from __future__ import annotations

import subprocess


def commit_of_src() -> str:
    """The last that changed what is tried."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no", "--", "src")
    return git("log", "-1", "--format=%h", "--", "src") + ("+" if dirty else "")
