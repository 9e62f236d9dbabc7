"""Arms before anything of them is timed: each must have changed what it says, or its row is skipped with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detente.records.arm import NO_ARM, Arm
from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.session.layout import missing_reason
from detente.session.proving import prepare, proof_cell
from detente.session.underway import Underway
from detente.stacks.catalogue import find_entry
from detente.stacks.factors import Facts, Row, bases_of, failed_checks

# The key under which a capture brings back what the compiler made (programs/built.py).
BUILT = "built"
# What another runtime needs of a program: what JAX wrote down itself, or HLO and what its arguments are.
_RUNNABLE = (("exported",), ("hlo", "signature"))


def check_arms(under: Underway, cells: Sequence[Cell]) -> None:
    """Skip every row whose arm cannot be built here, or does not do what it says. One capture each, of the arm and of
    what its checks compare with; their weights are there already."""
    for cell in cells:
        if not cell.arm or cell.key in under.ledger.session.skipped:
            continue
        why = _why_not(under, cell)
        if why:
            _skip(under, cell, why)


def take_programs(under: Underway, cells: Sequence[Cell]) -> list[Cell]:
    """Capture the programs that rows run under the arm ``program``, for what is timed and for what is proved of it in
    float64. The cells that are left: a row whose program nobody else can run is skipped with the reason."""
    left = []
    for cell in cells:
        program = cell.arm.get("program")
        # The control exports its own program, and needs nobody's.
        if program is None or program == cell.stack:
            left.append(cell)
            continue
        targets = [cell, *filter(None, [proof_cell(cell)])]
        why = next((why for target in targets if (why := _take(under, target, program))), "")
        if not why:
            left.append(cell)
            continue
        _skip(under, cell, why)
    return left


def _skip(under: Underway, cell: Cell, why: str) -> None:
    """The row and its twin run no further, and the reason is told once."""
    under.ledger.skip(under.layout.alike(cell), why)
    under.tally.tell("note", f"{cell.label} is skipped: {why}", cell=cell.key)


def _take(under: Underway, cell: Cell, program: str) -> str:
    """Why a cell cannot have its program; empty where it has."""
    if not find_entry(program).foreign_program:
        return f"{program} does not say what the arguments of its program are, and so nobody else can run it"
    row = row_of(cell, program, NO_ARM)
    if cell.key in under.workers.foreign:
        return ""
    prepare(under, [row])
    evidence = captured(under, row)
    if evidence.status != "ok":
        return f"{row.label}: {evidence.reason}"
    files = {p.form: str(under.workers.artefacts / p.path) for p in evidence.programs}
    wanted = next((forms for forms in _RUNNABLE if all(form in files for form in forms)), None)
    if wanted is None:
        why = evidence.probes.get("unsigned") or "its capture brought none that says what its arguments are"
        return f"{program}'s program cannot be run by another runtime: {why}"
    under.workers.foreign[cell.key] = {form: files[form] for form in wanted}
    return ""


def _why_not(under: Underway, cell: Cell) -> str:
    facts: dict[Row, Facts] = {}
    for stack, arm in ((cell.stack, cell.arm), *bases_of(cell.stack, cell.arm).values()):
        row, program = row_of(cell, stack, arm), arm.get("program")
        # What a check compares with may be no row of the session, and nobody has taken its program yet.
        if program not in (None, stack) and (why := _take(under, row, program)):
            return why
        evidence = captured(under, row)
        if evidence.status != "ok":
            # The reason of a row itself says enough; of another one it says whose it is.
            whose = "" if (stack, arm) == (cell.stack, cell.arm) else f"{arm.label(stack)}: "
            return f"{whose}{evidence.reason}"
        facts[stack, arm] = evidence.probes.get(BUILT, {})
    return "; ".join(failed_checks(cell.stack, cell.arm, facts))


def row_of(cell: Cell, stack: str, arm: Arm) -> Cell:
    """The row of a stack under an arm that belongs to the same comparison as ``cell``."""
    if (stack, arm) == (cell.stack, cell.arm):
        return cell
    # A label has no slash: of a stack of the user's it is what stands behind its folder.
    name = cell.label.partition("[")[0] if stack == cell.stack else stack.rpartition("/")[2]
    return replace(cell, stack=stack, arm=arm, label=arm.shown(name))


def captured(under: Underway, cell: Cell) -> Evidence:
    """The programs of a row and what the compiler made of them: from this session where it has them."""
    known = [p for p in under.ledger.session.every(cell, "capture") if not p.evidence.killed]
    if known:
        return known[-1].evidence
    missing = missing_reason(find_entry(cell.stack), cell.arm)
    if missing:
        return Evidence("skipped", "start", missing)
    process = under.process("capture", cell)
    under.ledger.keep(process)
    return process.evidence
