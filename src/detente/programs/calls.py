"""How far calls are followed: a few hundred bytes can claim any number of operations, nested any number of times."""

from __future__ import annotations

from collections.abc import Sequence

from detente.programs.module import Computation, ProgramError

# A program of more operations, calls expanded, is none that anybody trains.
MOST = 4_000_000
DEEPEST = 200


def check_depth(home: Computation, above: Sequence[str]) -> None:
    """``above``: the computations that ``home`` is called from, outermost first. Raises ProgramError where it is called
    from itself, or too deep."""
    if home.name in above:
        raise ProgramError(f"computation {home.name!r} calls itself")
    if len(above) > DEEPEST:
        raise ProgramError(f"calls are nested more than {DEEPEST} deep")


class Budget:
    """How many operations one walk may still meet, wherever it meets them."""

    def __init__(self) -> None:
        self._left = MOST

    def spend(self, many: int = 1) -> None:
        """Raises ProgramError where the walk has met more than any program has."""
        self._left -= many
        if self._left < 0:
            raise ProgramError(f"with its calls expanded the program has more than {MOST:,} operations")
