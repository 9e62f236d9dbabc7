"""Détente: one referee for the training stacks, and a bridge between them.

Importing this package imports no framework; the public names are resolved when they are first used.
"""

from __future__ import annotations

__version__ = "0.1.0"
