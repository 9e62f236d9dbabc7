"""Why one row is faster than another: the waterfall from A to B, where their gap is settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from detente.explain.causes import Cause, Path, rows_between
from detente.explain.rows import Rows, label_of
from detente.explain.waterfall import Arm as Switched
from detente.explain.waterfall import Waterfall, waterfall
from detente.judge.statistics import ALPHA, MARGIN, corrected, paired
from detente.judge.verdicts import SETTLED, judge_pair
from detente.records.verdict import LEAST_BLOCKS, Verdict
from detente.stacks.factors import Row


@dataclass(frozen=True)
class Explanation:
    """A pair, explained or not.

    verdict    of A against B, as the one pair that was asked about; None where one of them has no figures
    waterfall  None where the gap is not settled; without bars where there is nothing to switch
    reason     why there are no bars, in words; empty where there are
    dropped    cause -> why it has no bar: its share is in what is left
    never_same why nothing of the session may be called the same, nor a difference rejected; empty where it may
    """

    a: str
    b: str
    verdict: Verdict | None
    waterfall: Waterfall | None
    reason: str = ""
    dropped: dict[str, str] = field(default_factory=dict)
    never_same: str = ""


def explain_pair(rows: Rows, path: Path) -> Explanation:
    """The waterfall from ``path.a`` to ``path.b``. A cause whose rows were not measured, not proved, or did not do what
    they say has no bar, and the reason stands beside it."""
    return replace(_explained(rows, path), never_same=rows.never_same)


def open_still(rows: Rows, path: Path) -> bool:
    """Whether more blocks may settle what these do not: both ends have figures, and no word of them holds yet."""
    if path.a == path.b or any(rows.why_not(end) for end in (path.a, path.b)):
        return False
    return bool(rows.unsure) or _verdict(rows, path).word not in SETTLED


def _explained(rows: Rows, path: Path) -> Explanation:
    a, b = label_of(path.a), label_of(path.b)
    for end in (path.a, path.b):
        if why := rows.why_not(end):
            return Explanation(a, b, None, None, why)
    if path.a == path.b:
        times = rows.medians[path.a]
        again = rows.twins.get(path.a) or times
        found = waterfall({frozenset(): times}, times, again, [()], rows.log_noise, rho=rows.correlation)
        return Explanation(a, b, None, found, "one row under two names: there is nothing to switch")
    if rows.unsure:
        return Explanation(a, b, None, None, f"the gap is not settled: {rows.unsure}")
    verdict = _verdict(rows, path)
    if verdict.word not in ("FASTER", "SLOWER"):
        said = {"SAME": "there is no gap", "LEANS": "the gap is not settled"}
        why = said.get(verdict.word, "the gap is not settled")
        return Explanation(a, b, verdict, None, f"{why}: {verdict.reason}")
    path, missing = _measured(rows, path)
    whole = frozenset(rows.blocks)
    dropped = {**dict(path.left), **missing}
    # Where no cause is left, all of the gap is.
    orders = path.orders() if path.causes else ((),)
    between = rows_between(path, orders) if path.causes else {frozenset[str](): path.a}

    def of(row: Row) -> dict[int, float]:
        """The blocks that the verdict is of, and no others."""
        return {block: median for block, median in rows.medians[row].items() if block in whole}

    times = {switched: of(row) for switched, row in between.items()}
    alpha = corrected(ALPHA, rows.pairs, rows.share)
    found = waterfall(times, of(path.a), of(path.b), orders, rows.log_noise, alpha, rows.correlation)
    return Explanation(a, b, verdict, found, "" if found.bars else "no cause was tested", dropped)


def _verdict(rows: Rows, path: Path) -> Verdict:
    """Of A against B, as the judge has it. Where the session was measured for this pair, its rows under arms are means
    to an end, and the correction counts one."""
    a, b = label_of(path.a), label_of(path.b)
    bound = max(MARGIN, rows.noise or 0.0)
    pair = paired(rows.medians[path.a], rows.medians[path.b], rows.blocks, rows.correlation)
    return judge_pair(rows.group, a, b, pair, bound, rows.pairs, rows.share, rows.never_same)


def _measured(rows: Rows, path: Path) -> tuple[Path, dict[str, str]]:
    """The path over the causes that were measured, and why the others were not. What A's own runtime does is no cause
    where its program cannot be run by another: everything would be."""
    dropped: dict[str, str] = {}
    while path.causes:
        between = rows_between(path, path.orders())
        missing = {row: why for row in between.values() if (why := _too_few(rows, row, path))}
        if not missing:
            break
        blamed = max(path.causes, key=lambda c: (_share(c, between, missing), -c.guess))
        mine = [row for row in missing if set(row[1].settings) & {*blamed.as_a, *blamed.as_b, *blamed.own}]
        why = missing[min(mine or missing, key=lambda row: len(row[1].settings))]
        gone = path.falls_with(blamed.code)
        dropped |= dict.fromkeys(gone, why + blamed.otherwise)
        path = path.without(*gone)
    return path, dropped


def _too_few(rows: Rows, row: Row, path: Path) -> str:
    """Why a row cannot be part of a waterfall; empty where it can. Bars are of the blocks that all rows share: one row
    that ended early would leave the others' figures out."""
    why = rows.why_not(row)
    if why or row in (path.a, path.b):
        return why
    mine = sum(block in rows.medians[row] for block in rows.blocks)
    if mine < LEAST_BLOCKS:
        return (
            f"{label_of(row)} ran well in {mine} of {len(rows.blocks)} blocks, and {LEAST_BLOCKS} are needed"
        )
    return ""


def _share(cause: Cause, between: Mapping[Switched, Row], missing: Mapping[Row, str]) -> float:
    """Of the rows in which the cause is one way or the other, the share that is missing, of the worse way: where it is
    to blame, all of them are."""
    shares = [0.0]
    for settings in filter(None, (cause.as_a, cause.as_b, cause.own)):
        mine = [row for row in between.values() if set(settings) <= set(row[1].settings)]
        shares.append(sum(row in missing for row in mine) / len(mine) if mine else 0.0)
    return max(shares)
