"""All pairs of a session: the A/A pair first, then a verdict for each pair shown. From medians to words; what a median
came from is not known here, so that made-up ones go through the same code (benchmarks/simulated_sessions.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from detente.judge import correlation
from detente.judge import verdicts as words
from detente.judge.headline import NOISE_UNKNOWN
from detente.judge.statistics import log_ratios, paired
from detente.judge.verdicts import Noise
from detente.records.verdict import Verdict

# Block -> median seconds per step of the process that ran in it.
Medians = Mapping[int, float]


@dataclass(frozen=True)
class Candidates:
    """The rows of one group, as pairs see them.

    labels   rows that ran, in the user's order, the A/A twin left out
    medians  of every row that may be compared, by label, the twin among them
    refused  label -> why no ratio with it is ever computed (void, failed, out of memory)
    steady   label -> seconds, by which the fastest is found
    aa       the labels of the A/A pair, where one was planned in this group
    """

    group: str
    labels: tuple[str, ...]
    medians: Mapping[str, Medians]
    refused: Mapping[str, str] = field(default_factory=dict)
    steady: Mapping[str, float] = field(default_factory=dict)
    aa: tuple[str, str] | None = None


@dataclass(frozen=True)
class Correlation:
    """Between neighbouring blocks of a group: the session's own estimate, and what the intervals assume."""

    own: float | None
    assumed: float


@dataclass(frozen=True)
class Pairs:
    """The words of a session, and what they rest on, by group. ``drifting`` is the A/A verdict that forbids ratios."""

    noises: dict[str, Noise]
    correlations: dict[str, Correlation]
    drifting: Verdict | None
    verdicts: tuple[Verdict, ...]


def judge_pairs(groups: Sequence[Candidates], blocks: tuple[int, ...], share: float, unsure: str) -> Pairs:
    """``blocks`` are the whole ones in the order in which they ran, ``share`` what this look may spend
    of alpha, ``unsure`` why
    SAME may not be said of this session (``MachineLoad.reason``)."""
    rhos = {g.group: correlation_of(g.medians.values(), blocks) for g in groups}
    noises = {g.group: _noise(g, blocks, rhos[g.group].assumed, share, unsure) for g in groups}
    drifting = next((n.verdict for n in noises.values() if n.drifting and n.verdict), None)
    shown: list[tuple[Candidates, str, str]] = []
    counted = 0
    for g in groups:
        timed = {label: g.steady[label] for label in g.labels if g.steady.get(label) and label in g.medians}
        pairs, number = words.layout_pairs(g.labels, min(timed, key=timed.__getitem__) if timed else None)
        shown += [(g, a, b) for a, b in pairs]
        counted += number

    def verdict(g: Candidates, a: str, b: str) -> Verdict:
        noise, group, n = noises[g.group], g.group, len(blocks)
        for label in (a, b):
            if label in g.refused:
                return words.void_pair(group, a, b, noise.margin, n, f"{label} {g.refused[label]}")
        if drifting is not None:
            return words.drifting_pair(group, a, b, noise.margin, n, drift_reason(drifting))
        pair = paired(g.medians[a], g.medians[b], blocks, rhos[group].assumed)
        why = unsure or ("" if noise.known else NOISE_UNKNOWN)
        return words.judge_pair(group, a, b, pair, noise.bound, counted, share, why)

    return Pairs(noises, rhos, drifting, tuple(verdict(*found) for found in shown))


def correlation_of(rows: Iterable[Medians], blocks: tuple[int, ...]) -> Correlation:
    """Over all pairs of a group's good rows, the A/A twin among them."""
    medians = list(rows)
    series = [log_ratios(b, a, blocks) for i, a in enumerate(medians) for b in medians[i + 1 :]]
    own = correlation.own_estimate(series)
    return Correlation(own, correlation.assumed(own, len(blocks)))


def _noise(g: Candidates, blocks: tuple[int, ...], rho: float, share: float, unsure: str) -> Noise:
    if g.aa is None:
        return Noise(None, words.MARGIN, drifting=False)
    a, b = g.aa
    if a not in g.medians or b not in g.medians:
        return Noise(None, words.MARGIN, drifting=False, known=False)
    # The twin ran under the second name: its time over the first one's.
    pair = paired(g.medians[b], g.medians[a], blocks, rho)
    return words.judge_noise(g.group, b, a, pair, share, unsure)


def drift_reason(aa: Verdict) -> str:
    """Why a drifting session prints no ratio."""
    return (
        f"the session is drifting: {aa.b} against itself came out at {aa.ratio:.3g} "
        f"[{aa.low:.3g}, {aa.high:.3g}] in {aa.group}, so that no ratio can be trusted"
    )
