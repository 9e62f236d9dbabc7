"""A cell: workload x stack x contract x device, and the arm under which the stack runs, where it has one."""

from __future__ import annotations

from dataclasses import dataclass

from detente.records.arm import NO_ARM, Arm
from detente.records.contract import Contract


@dataclass(frozen=True)
class Cell:
    """One thing that is measured. ``label`` is the row's name: the stack's, or ``jax#2`` where one stack runs
    under a second name (the A/A pair, or a stack that the user asked for twice). A row under an arm has it in its
    label, ``jax[donation=off]``, so that nothing that is kept by key confuses it with the stack itself. Raises
    ValueError where it has not."""

    workload: str
    size: str
    stack: str
    contract: Contract
    device: str
    label: str
    arm: Arm = NO_ARM

    def __post_init__(self) -> None:
        if self.arm and self.arm.shown("") not in self.label:
            raise ValueError(f"{self.label[:80]!r} is not called after its arm, {self.arm.shown('')}")

    @property
    def key(self) -> str:
        """A name that is unique in a session: ``gpt2/paper/train-step/fp32/cpu/jax#2``."""
        c = self.contract
        feed = "" if c.feed == "resident" else f"+{c.feed}{c.loader_workers or ''}"
        return f"{self.workload}/{self.size}/{c.name}{feed}/{c.precision}/{self.device}/{self.label}"

    @property
    def group(self) -> str:
        """What two cells must share to be compared: everything but the stack."""
        return self.key.rsplit("/", 1)[0]
