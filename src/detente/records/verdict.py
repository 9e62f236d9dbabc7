"""A verdict: what the statistics say of a pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Word = Literal["FASTER", "SLOWER", "SAME", "LEANS", "UNDECIDED", "VOID"]

# Under this many whole blocks nothing is decided: with fewer degrees of freedom Student's quantile is larger than any
# honest difference.
LEAST_BLOCKS = 5
# And of more than these nobody can ask (``--blocks``).
MOST_BLOCKS = 200


@dataclass(frozen=True)
class Verdict:
    """``a`` against ``b`` in one group. ``ratio`` is time(a) / time(b): below 1, a is faster.

    low, high   the one interval that is both printed and judged (95 %, Bonferroni over pairs and looks)
    margin      relative: 0.02, or wider where the session's A/A pair says so
    blocks      whole blocks behind it
    needed      blocks that would probably decide, where the word is UNDECIDED or LEANS; None where unknown
    reason      one clause for a reader: why this word
    """

    group: str
    a: str
    b: str
    word: Word
    ratio: float | None
    low: float | None
    high: float | None
    margin: float
    blocks: int
    needed: int | None = None
    reason: str = ""

    @property
    def too_noisy(self) -> bool:
        """Whether the machine decided nothing: its A/A pair lies too far apart."""
        return self.reason.startswith("too noisy")
