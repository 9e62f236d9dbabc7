"""From statistics to words: FASTER, SLOWER, SAME, LEANS, UNDECIDED, VOID, and whether more blocks are worth it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from detente.judge.looks import Looks
from detente.judge.statistics import (
    ALPHA,
    MARGIN,
    MARGIN_CAP,
    Interval,
    Paired,
    blocks_needed,
    corrected,
    interval,
)
from detente.records.verdict import LEAST_BLOCKS, Verdict, Word

# Words that more blocks would not change.
SETTLED = frozenset({"FASTER", "SLOWER", "SAME", "VOID"})


@dataclass(frozen=True)
class Noise:
    """What the A/A pair of a group says: its verdict against the fixed 2 %, the margin of SAME that follows (at most
    5 %), how far equal programs may lie apart here (``bound``, without a cap: what a difference must exceed), and
    whether the machine moved so much that no ratio means anything. ``known`` is False where an A/A pair was planned and
    did not come to an end: nobody knows what the machine alone does."""

    verdict: Verdict | None
    margin: float
    drifting: bool
    bound: float = MARGIN
    known: bool = True

    @property
    def too_noisy(self) -> bool:
        return self.bound > MARGIN_CAP


def judge_pair(
    group: str,
    a: str,
    b: str,
    pair: Paired,
    bound: float,
    pairs: int,
    share: float = Looks.share,
    unsure: str = "",
) -> Verdict:
    """The verdict of ``a`` against ``b``. ``bound`` is how far equal programs may lie apart (2 %, or what the A/A pair
    says), ``pairs`` the number of pairs that the report shows, ``share`` what this look may spend of alpha
    (``looks_of``). ``unsure`` says why SAME cannot be said of this session (others use the machine); empty where
    it can.

    A difference must exceed the whole bound; SAME is said within 5 % at most, and only of an interval that holds 1 or
    lies within the fixed 2 %. Otherwise a noisy machine would call programs the same *because* it is noisy.

    The interval in the verdict is the one that the word was judged by: the corrected 95 % interval, and for SAME
    the corrected 90 % one (two one-sided tests at 5 %).
    """
    margin = min(bound, MARGIN_CAP)
    alpha = corrected(ALPHA, pairs, share)
    wide = interval(pair, alpha)
    if wide is None:
        reason = "no whole block yet" if pair.n == 0 else "one whole block says nothing about the spread"
        return Verdict(group, a, b, "UNDECIDED", None, None, None, margin, pair.n, LEAST_BLOCKS, reason)
    narrow = interval(pair, 2 * alpha)
    assert narrow is not None

    def verdict(word: Word, found: Interval, reason: str, needed: int | None = None) -> Verdict:
        low, high = found.ratios
        return Verdict(group, a, b, word, math.exp(pair.mean), low, high, margin, pair.n, needed, reason)

    if pair.n < LEAST_BLOCKS:
        return verdict("UNDECIDED", wide, f"under {LEAST_BLOCKS} blocks nothing is decided", LEAST_BLOCKS)
    if wide.beyond(bound):
        word = "FASTER" if pair.mean < 0 else "SLOWER"
        edge = (
            f"margin of {_percent(margin)}" if bound == margin else f"A/A pair's bound of {_percent(bound)}"
        )
        return verdict(word, wide, f"the 95 % interval lies wholly beyond the {edge}")
    if bound > MARGIN_CAP:
        return verdict("UNDECIDED", wide, f"too noisy: {_apart(bound)}, more than {_percent(MARGIN_CAP)}")
    if narrow.inside(margin) and (narrow.inside(MARGIN) or not narrow.excludes_equal()):
        if unsure:
            return verdict("UNDECIDED", wide, f"within {_percent(margin)}, but {unsure}: SAME is not said")
        return verdict("SAME", narrow, f"the 90 % interval lies wholly within {_percent(margin)}")
    # The wider margin shrinks with more blocks; 2 % is what remains of it. Between the two nobody can tell.
    far = abs(pair.mean) > math.log1p(margin)
    near = abs(pair.mean) < math.log1p(MARGIN)
    needed = blocks_needed(pair, margin if far else MARGIN, alpha) if far or near else None
    if wide.excludes_equal():
        side = "less" if pair.mean < 0 else "more"
        reason = f"takes {side} time, but the interval reaches into the margin of {_percent(margin)}"
        return verdict("LEANS", wide, reason, needed)
    if needed is None:
        more = "the difference sits on the margin or the spread is too large: more blocks will not settle it"
    else:
        more = f"about {needed} blocks needed, {pair.n} measured"
    return verdict("UNDECIDED", wide, f"the interval holds 1; {more}", needed)


def void_pair(group: str, a: str, b: str, margin: float, blocks: int, reason: str) -> Verdict:
    """A pair of which a side failed the audit, the proof or the run: no ratio, no interval."""
    return Verdict(group, a, b, "VOID", None, None, None, margin, blocks, None, reason)


def drifting_pair(group: str, a: str, b: str, margin: float, blocks: int, reason: str) -> Verdict:
    """A pair of a drifting session: nothing is wrong with the two programs, and no ratio is printed."""
    return Verdict(group, a, b, "UNDECIDED", None, None, None, margin, blocks, None, reason)


def judge_noise(
    group: str, a: str, b: str, pair: Paired, share: float = Looks.share, unsure: str = ""
) -> Noise:
    """The A/A pair: judged against the fixed margin, alone (one pair)."""
    verdict = judge_pair(group, a, b, pair, MARGIN, 1, share, unsure)
    found = interval(pair, corrected(ALPHA, 1, share))
    if found is None or pair.n < LEAST_BLOCKS:
        return Noise(verdict, MARGIN, drifting=False, known=False)
    bound = max(MARGIN, found.bound)
    return Noise(verdict, min(MARGIN_CAP, bound), found.beyond(MARGIN), bound)


def layout_pairs(labels: tuple[str, ...], fastest: str | None) -> tuple[tuple[tuple[str, str], ...], int]:
    """The pairs that are shown for the rows ``labels`` (in the user's order, the A/A twin left out), as (a, b), and
    the number of pairs that the correction counts.

    Up to four rows: every one against every earlier one. More: each against the first named (the reference) and
    against the fastest. Which one is fastest is read from the data, so the correction still counts every pair that
    could have been shown.
    """
    every = tuple((a, b) for i, a in enumerate(labels) for b in labels[:i])
    if len(labels) <= 4:
        return every, len(every)
    anchors = {labels[0], fastest or labels[0]}
    return tuple((a, b) for a, b in every if a in anchors or b in anchors), len(every)


@dataclass(frozen=True)
class Decision:
    """What the session does next. ``go_on`` True: run another block. ``look`` True: the words were looked at."""

    go_on: bool
    look: bool
    reason: str

    def __bool__(self) -> bool:
        return self.go_on


def decide(blocks: int, looks: Looks, verdicts: Iterable[Verdict] | None) -> Decision:
    """Whether to run another block after ``blocks`` whole ones. ``verdicts`` are needed at a look that is not the last
    (``Looks.between``), and may be None elsewhere."""
    last = looks.at[-1]
    if blocks >= last:
        return Decision(False, True, f"all {last} blocks are whole")
    if blocks not in looks.at:
        following = next(n for n in looks.at if n > blocks)
        return Decision(True, False, f"{blocks} blocks; the next look is at {following}")
    words = tuple(verdicts or ())
    open_pairs = [v for v in words if v.word not in SETTLED]
    if not open_pairs:
        return Decision(
            False, True, f"every pair is settled after {blocks} blocks" if words else "no pair to settle"
        )
    return Decision(True, True, f"{len(open_pairs)} of {len(words)} pairs are open after {blocks} blocks")


def _apart(bound: float) -> str:
    return f"the A/A pair differs by up to {_percent(bound)}"


def _percent(x: float) -> str:
    return f"{100 * x:.3g} %"
