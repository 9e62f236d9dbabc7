"""Under which conditions the words of a group were found: margin, noise, correlation, load. A sentence each."""

from __future__ import annotations

from detente.judge.block_correlation import STORED
from detente.judge.correlation import OWN_FROM, widening
from detente.judge.statistics import MARGIN, MARGIN_CAP
from detente.records.result import SessionHead
from detente.report.numbers import count, duration, margin, plain_span
from detente.report.sentences import Comparison


def conditions(session: SessionHead, group: Comparison) -> tuple[str, ...]:
    """What the reader must know to weigh the words; nothing of a drifting session, whose headline says it."""
    if session.state == "drifting":
        return ()
    return (_margin(session, group), *_correlation(session, group), *_load(session))


def _margin(session: SessionHead, group: Comparison) -> str:
    if group.aa is None:
        return f"The margin is {margin(group.margin)}; no A/A pair ran."
    ends = group.aa.low, group.aa.high
    noise = f" ({group.twice()} against itself: {plain_span(*ends)})" if None not in ends else ""  # type: ignore[arg-type]
    column = session.noise.get(group.name)
    if column is not None and column.bound > MARGIN_CAP:
        return (
            f"Too noisy for SAME: the A/A pair differs by up to {margin(column.bound)}{noise}, more than "
            f"{margin(MARGIN_CAP)}; only a difference beyond that is decided."
        )
    if margin(group.margin) == margin(MARGIN):
        return f"The margin is {margin(group.margin)}{noise}."
    return f"The margin is widened by the A/A pair from {margin(MARGIN)} to {margin(group.margin)}{noise}."


def _correlation(session: SessionHead, group: Comparison) -> tuple[str, ...]:
    column = session.noise.get(group.name)
    if column is None or session.blocks < 2:
        return ()
    own = ""
    if column.own_rho is not None:
        used = "used" if column.rho > STORED.bound else "not used"
        few = f", of {session.blocks} blocks" if session.blocks < OWN_FROM else ""
        own = f"; this session's own estimate{few}, {used}: {column.own_rho:.2f}"
    kind = ", provisional" if STORED.provisional else ""
    return (
        f"Intervals are {widening(column.rho):.2f} times as wide as for independent blocks "
        f"(stored bound of the correlation between blocks: {STORED.bound:.2f}{kind}{own}).",
    )


def _load(session: SessionHead) -> tuple[str, ...]:
    load = session.load
    if load is None:
        return ()
    waited = f" after waiting {duration(load.waited_s)} for a quiet machine" if load.waited_s else ""
    if not load.reason:
        return (
            (f"Others used {100 * load.share:.1f} % of the machine{waited}.",)
            if load.share is not None
            else ()
        )
    who = f": {', '.join(load.names)}" if load.names else ""
    unknown = (
        f" Of {count(load.unknown, 'process', 'processes')} it was not recorded." if load.unknown else ""
    )
    return (f"The machine was not quiet{waited}: {load.reason}{who}.{unknown}",)
