"""What is asked: which two rows, of what. As the user names it, or the slowest and the fastest comparable rows of a
session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from detente.explain.causes import KERNELS, Path, known_path, lacking, narrowed
from detente.records.contract import CONTRACTS
from detente.records.fault import UsageFault
from detente.records.result import Result
from detente.stacks.catalogue import find_entry
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
        path = narrowed(known_path(self.a, self.b), self.lacks, self.same_program)
        # The bridge's loss or gradient alone is XLA's own code.
        brings = CONTRACTS[self.contract].region in FACTORS[KERNELS].regions
        return path if brings else path.without(KERNELS)

    def knowing(self, built: Mapping[str, Facts]) -> Question:
        """The same question behind the captures: stack -> what its compiler made (programs/built.py)."""
        a, b = built.get(self.a, {}), built.get(self.b, {})
        same = a.get("program") is not None and a.get("program") == b.get("program")
        return replace(self, lacks=lacking(a, b, self.b), same_program=same and self.a != self.b)


def ask(workload: str, size: str, contract: str, precision: str, device: str, a: str, b: str) -> Question:
    """A question as a user names it. Raises UsageFault for a stack that there is not, and for one and the same file's
    stack of the user's own, which nothing is known about that could be switched."""
    for name in (a, b):
        find_entry(name)
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


def single_arms(stack: str, region: str) -> tuple[str, ...]:
    """The rows of a stack under one arm each, by what they are expected to move: what each cause is worth there."""
    found = []
    for factor in sorted(FACTORS.values(), key=lambda f: -f.guess):
        if stack not in factor.stacks or region not in factor.regions or factor.code == "program":
            continue
        for setting in factor.settings:
            mine = "scan" if stack == "jax-scan" else "unrolled"
            if factor.code == "loop" and setting == mine:
                continue
            found.append(f"{stack}[{factor.code}={setting}]")
    return tuple(found)
