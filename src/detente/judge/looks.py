"""When a session looks at its words, and what share of alpha each look may spend.

Who looks and may go on afterwards has had more than one chance of a false word. So each look has a share, and they add
up to alpha at most, however often somebody looks.
"""

from __future__ import annotations

from dataclasses import dataclass

from detente.records.session import Session
from detente.records.verdict import LEAST_BLOCKS

# Of a session that decides for itself when to stop, in whole blocks; each spends a third of alpha.
LOOKS = (LEAST_BLOCKS, 10, 15)
# Of what is left, the share that the end of a budget spends. Nearly all of it the first time: few go on, and who does
# has a fifth of it left.
_AT_THE_END = 0.8
# Of a session that goes on behind its settled number of blocks while its one question is open: what its first look
# spends, of which most have enough. The later looks share the rest.
_AT_FIRST = 0.7
# Ends that make the next share smaller. What later ones spend is a hundred-millionth of alpha each, and Student's
# quantile of much less is infinite.
_COUNTED = 12


@dataclass(frozen=True)
class Looks:
    """``at``: whole blocks behind which the words are read, the last of which ends the session. ``share``: what words
    read now may spend of alpha."""

    at: tuple[int, ...] = LOOKS
    share: float = 1 / len(LOOKS)

    def between(self, blocks: int) -> bool:
        """Whether the words are needed after ``blocks`` whole ones, to say if more are run."""
        return blocks in self.at[:-1]


def looks_of(session: Session) -> Looks:
    """How ``session`` looks: once, where its user settled the number of blocks before it began, and behind each further
    such number where it goes on while its question is open; at the end of its budget, and again each time that it was
    resumed and ended; else at 5, 10 and 15 blocks.

    What a budget holds depends on what processes cost, and on no verdict: that is no look.
    """
    settings = session.fingerprint.settings
    blocks, budget_s = settings.get("blocks"), settings.get("budget_s")
    earlier = min(max(0, session.looked - (session.ended is not None)), _COUNTED)
    at_the_end = _AT_THE_END * (1 - _AT_THE_END) ** earlier
    if blocks is not None and (settings.get("blocks_at_most") or 0) > int(blocks):
        return _while_open(int(blocks), int(settings["blocks_at_most"]), len(session.whole_blocks()))
    if blocks is not None:
        whole = not earlier and len(session.whole_blocks()) >= int(blocks)
        return Looks((int(blocks),), 1.0 if whole or not budget_s else at_the_end)
    if not budget_s or (session.ended is not None and not session.looked):
        # Sessions that did not count their ends looked by the rule without a budget.
        return Looks()
    return Looks(LOOKS[-1:], at_the_end)


def _while_open(blocks: int, at_most: int, whole: int) -> Looks:
    """Of a session that goes on while its question is open. Where it ended between two looks it is read at the
    following one's share; it is never gone on with from there."""
    at = tuple(range(blocks, at_most + 1, blocks))
    behind_the_first = whole > blocks and len(at) > 1
    return Looks(at, (1 - _AT_FIRST) / (len(at) - 1) if behind_the_first else _AT_FIRST)
