"""The judgement: a session in, a result out. Nothing is run, no framework is imported, no file is read.

The order is fixed: audit before statistics, so that no ratio with a void row is ever computed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from detente.judge import verdicts as words
from detente.judge.floor import Peak, Work, best_peak, floor_column, raise_peak
from detente.judge.load import load_of
from detente.judge.looks import looks_of
from detente.judge.meant import is_meant
from detente.judge.pairs import Candidates, Pairs, drift_reason, judge_pairs
from detente.judge.rows import (
    block_medians,
    captured,
    compile_column,
    first_seconds,
    make_row,
    median_of,
    memory_column,
    phases_of,
    steady_column,
)
from detente.judge.rules.audit import audit
from detente.judge.rules.hardware import FOREIGN
from detente.judge.rules.rule import Group, Row
from detente.judge.verdicts import Decision
from detente.records.arm import NO_ARM
from detente.records.cell import Cell
from detente.records.finding import Finding
from detente.records.precision import PRECISIONS
from detente.records.result import CellResult, MachineLoad, NoiseColumn, Result, SessionHead
from detente.records.session import Session

_OWN_STACK = ".py:"
WorkloadFacts = Mapping[str, Mapping[str, int]]


def judge(
    session: Session,
    workload_facts: WorkloadFacts | None = None,
    set_aside: frozenset[tuple[str, str]] = frozenset(),
) -> Result:
    """The result of a session: every planned cell as a row, the A/A pair, and a verdict for each pair shown.

    ``workload_facts`` maps a group (``Cell.group``) to ``{"flops": int, "bytes": int}`` of one step. Without it they
    are read from ``session.fingerprint.settings["workloads"]``, so that an imported session can be judged where no
    framework and no workload is installed; a group that is in neither has no floor. ``set_aside`` holds (cell's key,
    rule): what is found there is what somebody asks about, and makes no row void.
    """
    facts = {**session.fingerprint.settings.get("workloads", {}), **(workload_facts or {})}
    groups = _groups(session, facts)
    findings = {group.name: _findings(session, group, set_aside) for group in groups.values()}
    status = {
        row.cell.key: _status(session, row, findings[group.name])
        for group in groups.values()
        for row in group.rows
    }
    blocks = session.whole_blocks()
    load = load_of(session, blocks)
    candidates = tuple(_candidates(session, group, status) for group in groups.values())
    pairs = judge_pairs(candidates, blocks, looks_of(session).share, load.reason)
    cells = [
        _cell_result(row, group, findings[group.name], *status[row.cell.key])
        for group in _raised(groups, status).values()
        for row in group.rows
    ]
    order = {cell.key: i for i, cell in enumerate(session.planned)}
    ranked = sorted(cells, key=lambda c: order[f"{c.group}/{c.label}"])
    return Result(_head(session, groups, pairs, load, blocks), tuple(ranked), pairs.verdicts)


def more_blocks(session: Session, workload_facts: WorkloadFacts | None = None) -> Decision:
    """Whether the session should run another block; truthy means yes. Ask it after every whole block.

    It looks at the words where ``looks_of`` says, and LEANS never stops it. When the budget ends is the session's own
    business.
    """
    looks, done = looks_of(session), len(session.whole_blocks())
    shown = judge(session, workload_facts).verdicts if looks.between(done) else None
    return words.decide(done, looks, shown)


# -- groups ------------------------------------------------------------------------------------------------------


def _groups(session: Session, facts: WorkloadFacts) -> dict[str, Group]:
    rows: dict[str, list[Row]] = {}
    for cell in session.planned:
        rows.setdefault(cell.group, []).append(make_row(session, cell))
    everything = [row for group in rows.values() for row in group]
    settings = session.fingerprint.settings
    return {
        name: Group(
            name, tuple(group), _work(facts.get(name), group), _peak(everything, group[0].cell), settings
        )
        for name, group in rows.items()
    }


def _work(facts: Mapping[str, int] | None, rows: list[Row]) -> Work | None:
    """What a step must do. 0 means that nobody knows: a user's own model has no closed form of its costs. Then the
    leanest of the captured programs says it, of rows whose proof did not fail: what it computes suffices, and it reads
    its arguments and writes its results once. Without a program no floor is drawn."""
    if facts and facts["flops"]:
        return Work(int(facts["flops"]), int(facts["bytes"]), int(facts.get("least_flops", 0)))
    if not facts:
        return None
    found = [
        Work(int(p["flops"]), int(p["argument_bytes"]) + int(p["output_bytes"]))
        for row in rows
        if (row.parity is None or "failed" not in (row.parity.same_function, row.parity.same_precision))
        and isinstance(p := row.get("program"), dict)
        and not p.get("unknown_loops", 1)
        and p.get("flops", 0) > 0
    ]
    if not found:
        return None
    return Work(min(w.flops for w in found), min(w.bytes for w in found), counted=True)


def _peak(rows: list[Row], like: Cell) -> Peak | None:
    """The best rates of the session at this device and precision. A row whose products run at another precision
    than declared is void, and its rate is a rate of something else; a rate that was reached beside other processes
    is too low, and counts only where there is no better one; and a user's own stack times its own products, so that
    its rates count only where no stack of the catalogue told any."""
    wanted = PRECISIONS[like.contract.precision].product
    probed = [
        (process.foreign, _OWN_STACK in row.cell.stack, process.evidence.probes["peak"])
        for row in rows
        if (row.cell.device, row.cell.contract.precision) == (like.device, like.contract.precision)
        and row.get("precision.class", wanted) == wanted
        for process in (*row.fine, *row.others)
        if "peak" in process.evidence.probes
    ]
    known = [one for one in probed if not one[1]] or probed
    quiet = [probe for foreign, _, probe in known if foreign <= FOREIGN]
    return best_peak(quiet) or best_peak([probe for _, _, probe in known], busy=True)


def _raised(groups: dict[str, Group], status: dict[str, tuple[str, str]]) -> dict[str, Group]:
    """The groups with peaks as they are after every good row was seen that had the machine to itself."""
    steady: dict[tuple[str, str], dict[str, tuple[Work, float]]] = {}
    for group in groups.values():
        for row in group.rows:
            alone = all(p.foreign <= FOREIGN for p in row.fine)
            if group.work and row.steady and alone and status[row.cell.key][0] == "ok":
                key = (row.cell.device, row.cell.contract.precision)
                steady.setdefault(key, {})[row.cell.key] = (group.work, row.steady)
    found = {}
    for name, group in groups.items():
        first = group.rows[0].cell
        seen = steady.get((first.device, first.contract.precision), {})
        peak = raise_peak(group.peak, seen) if group.peak else None
        found[name] = Group(name, group.rows, group.work, peak, group.settings)
    return found


def _findings(
    session: Session, group: Group, set_aside: frozenset[tuple[str, str]] = frozenset()
) -> tuple[Finding, ...]:
    """The audit of a group. The A/A twin is probed less than the stack that it repeats: what is missing of it is
    there of its sibling, and is no news. What an arm is for is none either."""
    pair = session.pair_among([row.cell.label for row in group.rows])
    twin = pair[1] if pair else None
    keys = {row.cell.key for row in group.rows if row.cell.label == twin}
    arms = {row.cell.key: row.cell.arm for row in group.rows}
    return tuple(
        f
        for f in audit(group)
        if (f.severity != "unchecked" or f.cell not in keys)
        and not is_meant(arms.get(f.cell, NO_ARM), f.rule)
        and (f.cell, f.rule) not in set_aside
    )


# -- rows --------------------------------------------------------------------------------------------------------


def _status(session: Session, row: Row, findings: tuple[Finding, ...]) -> tuple[str, str]:
    """The row's status and the reason beside it."""
    key = row.cell.key
    if key in session.skipped:
        return "skipped", session.skipped[key]
    if not row.processes:
        return "skipped", session.rested.get(key, "not measured before the session ended")
    if not row.fine:
        last = row.processes[-1].evidence
        where = f" (in {last.phase})" if last.phase else ""
        return last.status, (last.reason or f"no reason given{where}")
    void = next((f for f in findings if f.cell == key and f.severity == "void"), None)
    if void:
        return "void", f"{void.rule}: {void.what}"
    return "ok", session.rested.get(key, "")


def _cell_result(
    row: Row, group: Group, findings: tuple[Finding, ...], status: str, reason: str
) -> CellResult:
    cell = row.cell
    floor = None
    if group.work and group.peak:
        floor = floor_column(group.work, group.peak, row.steady, cell.key)
    first = row.fine[0].evidence if row.fine else None
    return CellResult(
        workload=cell.workload,
        size=cell.size,
        stack=cell.stack,
        label=cell.label,
        contract="out-of-the-box" if row.recipe == "out-of-the-box" else cell.contract.name,
        precision=cell.contract.precision,
        device=row.platform,
        status=status,
        reason=reason,
        import_s=median_of(row.fine, lambda e: e.import_s),
        build_s=median_of(row.fine, lambda e: e.build_s),
        first_s=first_seconds(row),
        second_s=median_of(row.fine, lambda e: e.second_s),
        third_s=median_of(row.fine, lambda e: e.third_s),
        steady_s=steady_column(row),
        compile=compile_column(row),
        memory=memory_column(row),
        floor=floor,
        parity=row.parity,
        findings=tuple(f for f in findings if f.cell == cell.key),
        programs=captured(row),
        versions=first.versions if first else {},
        losses=first.losses if first else (),
        group=cell.group,
        phases=phases_of(row),
        practice=str(row.get("practice.said", "")),
        arm=cell.arm.name,
    )


# -- pairs -------------------------------------------------------------------------------------------------------


def _by_label(group: Group) -> dict[str, Row]:
    return {row.cell.label: row for row in group.rows}


def _candidates(session: Session, group: Group, status: dict[str, tuple[str, str]]) -> Candidates:
    rows = _by_label(group)
    pair = session.pair_among(rows.keys())
    twin = pair[1] if pair else None
    state = {label: status[row.cell.key] for label, row in rows.items()}
    fine = {label: row for label, row in rows.items() if state[label][0] == "ok"}
    said = {"void": "is void", "oom": "ran out of memory"}
    return Candidates(
        group.name,
        tuple(label for label in rows if label != twin and state[label][0] != "skipped"),
        {label: block_medians(row) for label, row in fine.items()},
        {
            label: f"{said.get(kind, kind)}: {why}"
            for label, (kind, why) in state.items()
            if kind not in ("ok", "skipped")
        },
        {label: row.steady for label, row in fine.items() if row.steady},
        pair,
    )


# -- head --------------------------------------------------------------------------------------------------------


def _head(
    session: Session,
    groups: dict[str, Group],
    pairs: Pairs,
    load: MachineLoad,
    blocks: tuple[int, ...],
) -> SessionHead:
    last = max((p.started + p.wall_s for p in session.processes), default=session.started)
    state = (
        "drifting"
        if pairs.drifting
        else "interrupted"
        if session.ended is None or session.note == "interrupted"
        else "unjudged"
        if not blocks
        else "whole"
    )
    peaks: dict[str, Any] = {}
    for group in groups.values():
        first = group.rows[0]
        if group.peak:
            peak = group.peak
            peaks[f"{first.platform}/{first.cell.contract.precision}"] = {
                "flops_per_s": peak.flops,
                "bytes_per_s": peak.bytes,
                "shape": list(peak.shape or ()),
            }
    wall_s = (last if session.ended is None else session.ended) - session.started
    return SessionHead(
        id=session.id,
        started=session.started,
        # Two readings of a clock that was set back in between say nothing of how long it took.
        wall_s=wall_s if wall_s >= 0 else None,
        command=session.command,
        rerun=shlex.join(session.command),
        state=state,
        blocks=len(blocks),
        fingerprint=session.fingerprint,
        margins={name: n.margin for name, n in pairs.noises.items()},
        aa={name: n.verdict for name, n in pairs.noises.items() if n.verdict},
        note=session.note or (drift_reason(pairs.drifting) if pairs.drifting else ""),
        peaks=peaks,
        load=load,
        noise={
            name: NoiseColumn(
                n.bound, n.known, pairs.correlations[name].assumed, pairs.correlations[name].own
            )
            for name, n in pairs.noises.items()
        },
        imported=session.imported,
        again=_again(session),
    )


def _again(session: Session) -> tuple[str, ...]:
    """The processes that were killed from outside and ran again: their evidence is not judged, and is not hidden."""
    return tuple(
        f"{p.cell.label}: a process of kind {p.kind} was killed by {p.evidence.killed} in phase {p.evidence.phase!r} "
        "and ran again"
        for p in session.processes
        if session.ran_again(p)
    )
