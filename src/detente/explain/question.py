"""What is asked: which two rows, of what. As the user names it, or the slowest and the fastest comparable rows of a
session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from detente.explain.causes import KERNELS, Path, known_path, lacking, narrowed
from detente.records.arm import read_arm
from detente.records.contract import CONTRACTS
from detente.records.fault import UsageFault
from detente.records.result import Result
from detente.records.session import Session
from detente.stacks.factors import FACTORS, Facts


@dataclass(frozen=True)
class Question:
    """Why ``b`` takes another time than ``a``. ``swapped``: the user named them the other way round; arms are rows of
    B's runtime, so that B is the one that has arms. ``lacks`` and ``same_program`` are what their captures say: the
    factors that B has and A has not, and whether both hand over one and the same program."""

    workload: str
    size: str
    contract: str
    precision: str
    device: str
    a: str
    b: str
    swapped: bool = False
    lacks: tuple[str, ...] = ()
    same_program: bool = False

    @property
    def path(self) -> Path:
        # The bridge's loss or gradient alone is XLA's own code.
        products = CONTRACTS[self.contract].region in FACTORS[KERNELS].regions
        return narrowed(known_path(self.a, self.b, products), self.lacks, self.same_program)

    def knowing(self, built: Mapping[str, Facts]) -> Question:
        """The same question behind the captures: stack -> what its compiler made (programs/built.py)."""
        a, b = built.get(self.a, {}), built.get(self.b, {})
        same = a.get("program") is not None and a.get("program") == b.get("program")
        return replace(self, lacks=lacking(a, b, self.b), same_program=same and self.a != self.b)


def ask(workload: str, size: str, contract: str, precision: str, device: str, a: str, b: str) -> Question:
    """A question about two stacks by their names, which nothing is asked about: a session that is told may name what is
    not here, and a stranger's file of a stack must not be run for it."""
    forth, back = known_path(a, b), known_path(b, a)
    swapped = len(back.causes) > len(forth.causes)
    a, b = (b, a) if swapped else (a, b)
    return Question(workload, size, contract, precision, device, a, b, swapped)


def of_result(result: Result) -> Question:
    """The slowest and the fastest row of a judged session that may be compared. Raises UsageFault where there are no
    two, saying why."""
    plain = [
        (c.steady_s.median, c)
        for c in result.cells
        if c.status == "ok"
        and c.steady_s is not None
        and not c.arm
        and "#" not in c.label
        and c.contract in CONTRACTS
    ]
    if len(plain) < 2:
        why = "; ".join(f"{c.label} is {c.status}: {c.reason}" for c in result.cells if c.status != "ok")
        raise UsageFault(
            f"session {result.session.id} has {len(plain)} rows that can be compared, and two are needed"
            + (f" ({why})" if why else ""),
            "name what to explain: detente explain gpt2 torch-eager jax",
        )
    group = plain[0][1].group
    mine = sorted((row for row in plain if row[1].group == group), key=lambda row: row[0])
    fast, slow = mine[0][1], mine[-1][1]
    if fast.stack == slow.stack:
        raise UsageFault(
            f"session {result.session.id} compares {slow.stack} with itself", "name two stacks to explain"
        )
    return ask(slow.workload, slow.size, slow.contract, slow.precision, slow.device, slow.stack, fast.stack)


def of_explained(session: Session) -> Question | None:
    """What a session was asked that ``explain`` measured: its first two rows are the ends. None of any other session.
    By its slowest and its fastest row it would be another question: who stands between the two may be either."""
    plain = [c for c in session.planned if not c.arm and "#" not in c.label]
    if session.command[:2] != ("detente", "explain") or len(plain) < 2 or plain[0].group != plain[1].group:
        return None
    a, b = plain[:2]
    if a.contract.name not in CONTRACTS:
        return None
    return ask(a.workload, a.size, a.contract.name, a.contract.precision, a.device, a.stack, b.stack)


def left_out(session: Session, question: Question) -> dict[str, str]:
    """Cause -> why the budget of the session did not hold it; nothing where it was measured for another question. Of a
    stranger's file only what are words."""
    asked, found = of_explained(session), session.fingerprint.settings.get("left_out")
    if asked is None or (asked.a, asked.b) != (question.a, question.b) or not isinstance(found, dict):
        return {}
    return {cause: why for cause, why in found.items() if isinstance(why, str)}


def of_session(
    session: Session,
    workload: str,
    stacks: tuple[str, str],
    size: str | None = None,
    contract: str | None = None,
    precision: str | None = None,
) -> Question:
    """A question about two stacks by what a session holds of them; None is whatever it has. Raises UsageFault where
    it has none, saying what there is."""
    held: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for cell in session.planned:
        if cell.stack in stacks and not cell.arm and cell.workload == workload:
            what = (cell.workload, cell.size, cell.contract.name, cell.contract.precision)
            held.setdefault(what, {})[cell.stack] = cell.device
    wanted = (workload, size, contract, precision)
    both = [what for what, devices in held.items() if set(stacks) <= devices.keys()]
    for what in both:
        if all(one is None or one == other for one, other in zip(wanted, what, strict=True)):
            return ask(*what, held[what][stacks[0]], *stacks)
    there = dict.fromkeys(
        f"{c.workload} {c.size}, {c.contract.name}, {c.contract.precision}: {c.label}"
        for c in session.planned
    )
    asked = " ".join(filter(None, wanted))
    raise UsageFault(
        f"session {session.id} has no rows of {' and '.join(stacks)} at {asked}",
        f"it has {'; '.join(list(there)[:12])}",
    )


def arms_beside(question: Question, region: str, built: Mapping[str, Facts]) -> tuple[str, ...]:
    """What is measured beside the path: B's single arms, then those of A that B has not, as PyTorch's attention."""
    theirs = single_arms(question.b, region, built.get(question.b))
    mine = single_arms(question.a, region, built.get(question.a))
    alone = [n for n in mine if all(question.b not in FACTORS[f].stacks for f in read_arm(n)[1].factors)]
    return tuple(dict.fromkeys((*theirs, *alone)))


def single_arms(stack: str, region: str, built: Facts | None = None) -> tuple[str, ...]:
    """The rows of a stack under one arm each, by what they are expected to move: what each cause is worth there.
    ``built``: the facts of its captured program, where there are any. What it has none of is not switched."""
    found, built = [], built or {}
    for factor in sorted(FACTORS.values(), key=lambda f: -f.guess):
        if stack not in factor.stacks or region not in factor.regions:
            continue
        # Neither is a cause of this stack's own: another's program, another release.
        if factor.code == "program" or factor.environments or built.get(factor.needs) == 0:
            continue
        for setting in factor.settings:
            mine = "scan" if stack == "jax-scan" else "unrolled"
            if factor.code == "loop" and setting == mine:
                continue
            found.append(f"{stack}[{factor.code}={setting}]")
    return tuple(found)
