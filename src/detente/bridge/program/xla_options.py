"""XLA's options for every step that this process compiles: an experiment's, set once, before the first step. They are
part of what the caches know a program by (cache/surroundings.py): a step without fusion is another executable."""

from __future__ import annotations

_SET: dict[str, str] = {}


def set_options(options: dict[str, str]) -> None:
    """From now on every step is compiled with these, by XLA's names (``xla_disable_hlo_passes``)."""
    _SET.clear()
    _SET.update(options)


def options() -> dict[str, str]:
    """What is set."""
    return dict(_SET)
