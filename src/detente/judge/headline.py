"""When a verdict may lead a report."""

from __future__ import annotations

from detente.records.result import SessionHead
from detente.records.verdict import Verdict

# On a machine that others use, or whose own noise is not known, a decided difference leads only from here on. A
# neighbour reaches rows unequally: threads that split their work beforehand wait for the one that lost its core,
# threads that take work as they go do not. Blocks do not average that out.
LEAST_RATIO = 1.25
NOISE_UNKNOWN = "the A/A pair did not come to an end, so that this machine's noise is not known"


def hindrance(head: SessionHead, group: str) -> str:
    """Why small differences of this session may not lead; empty on a quiet machine whose noise is known.

    A session that was judged by an older version carries neither figure, and says so by carrying none: nothing is held
    against it here, because it is judged again wherever it is read.
    """
    if head.load is not None and head.load.reason:
        return head.load.reason
    noise = head.noise.get(group)
    if noise is not None and not noise.known:
        return NOISE_UNKNOWN
    return ""


def may_lead(verdict: Verdict, head: SessionHead) -> bool:
    """Whether this verdict may be a headline. FASTER, SLOWER and SAME may, on a quiet machine; on another one only a
    difference whose *nearer* end is 1.25x or more. LEANS, UNDECIDED and VOID decide nothing and never may; in a
    drifting session nothing may."""
    if head.state == "drifting" or verdict.word not in ("FASTER", "SLOWER", "SAME"):
        return False
    if not hindrance(head, verdict.group):
        return True
    return verdict.word != "SAME" and (at_least(verdict) or 0.0) >= LEAST_RATIO


def at_least(verdict: Verdict) -> float | None:
    """How many times faster or slower at the least: the nearer end of the interval of FASTER or SLOWER, as a figure
    above 1; None for other words. What a headline says where the machine was not quiet."""
    if verdict.word == "FASTER" and verdict.high:
        return 1 / verdict.high
    return verdict.low if verdict.word == "SLOWER" else None
