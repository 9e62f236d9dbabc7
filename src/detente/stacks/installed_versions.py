"""Which versions a stack runs with, asked of its own environment."""

from __future__ import annotations

import importlib.metadata


def installed_versions(*distributions: str) -> dict[str, str]:
    """Versions of those distributions that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
