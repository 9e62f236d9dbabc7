"""One side of an explanation: what a capture of a row brought back, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from detente.explain.captured_parts import Divided, divide, executables, form_of, read
from detente.programs.count import read_program
from detente.programs.live_memory import LiveMemory
from detente.programs.module import Module, ProgramError
from detente.programs.part_table import PartTable
from detente.programs.parts import Part, Site, sites
from detente.programs.step_profile import StepProfile, of_operators, of_xla
from detente.programs.xplane import read_xplane
from detente.records.evidence import Evidence
from detente.records.program import Program


@dataclass(frozen=True)
class Side:
    """``label`` is the row's; ``artefacts`` where the evidence's programs lie."""

    label: str
    evidence: Evidence
    artefacts: Path
    _programs: dict[str, Program] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[str, Program] = {}
        for program in self.evidence.programs:
            found.setdefault(program.form, program)
        object.__setattr__(self, "_programs", found)

    @cached_property
    def _divided(self) -> Divided | None:
        return divide(self.evidence.programs, self.artefacts)

    @property
    def table(self) -> PartTable | None:
        """The program by part; None where there is no program that can be divided."""
        return self._divided.table if self._divided is not None else None

    @property
    def live(self) -> LiveMemory | None:
        """What the compiled program holds from operation to operation; None where the compiler tells nobody."""
        return self._divided.live if self._divided is not None else None

    @property
    def form(self) -> str:
        """What was handed over: ``hlo``, or ``operators`` of PyTorch."""
        return form_of(self.evidence.programs)

    @property
    def executables(self) -> int:
        """How many programs a step was handed over in; of more than one the first is what is read here."""
        return executables(self.evidence.programs)

    @cached_property
    def handed(self) -> Module:
        """The program as it was handed to the compiler."""
        return self._read(self.form)

    @cached_property
    def compiled(self) -> Module | None:
        """What the compiler made of it; None where it tells nobody."""
        return self._read("hlo-optimised") if "hlo-optimised" in self._programs else None

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        return sites(self.handed)

    @cached_property
    def _places(self) -> Mapping[Part, list[int]]:
        """Where the operations of each part stand: asked for every part, so that no question walks the program."""
        found: dict[Part, list[int]] = {}
        for at, site in enumerate(self.sites):
            found.setdefault(site.part, []).append(at)
        return found

    def of(self, parts: tuple[Part, ...]) -> list[Site]:
        """The operations of some parts, in the program's order."""
        return [
            self.sites[at] for at in sorted(at for part in set(parts) for at in self._places.get(part, ()))
        ]

    @property
    def anchors(self) -> Mapping[str, str]:
        return self.evidence.probes.get("anchors", {})

    @property
    def built(self) -> Mapping[str, object]:
        """What the compiler made, in numbers (programs/built.py)."""
        return self.evidence.probes.get("built", {})

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """``busy``: seconds of a step in which any operation ran; ``plain``: a step without the profiler; ``profiled``:
        with it. Empty where nothing was profiled, and ``busy`` absent where the runtime tells no operations."""
        program = self._programs.get("xplane")
        if program is None:
            return {}
        facts = program.facts
        found = {"plain": facts.get("plain_s", 0.0), "profiled": facts.get("profiled_s", 0.0)}
        profile = read_xplane(read(program, self.artefacts))
        if profile.span > 0 and facts.get("profiled_s"):
            found["busy"] = profile.busy / profile.span * facts["profiled_s"]
        return found

    @cached_property
    def profile(self) -> StepProfile:
        """Where the seconds of a step went. Raises ProgramError where nothing was timed, or by kernels that hold
        several operations (torch.compile)."""
        if "operators" in self._programs:
            return of_operators(self.bytes_of("operators"), self._programs["operators"].facts)
        facts = self._programs["xplane"].facts if "xplane" in self._programs else {}
        return of_xla(self.bytes_of("hlo-optimised"), self.bytes_of("xplane"), facts)

    @cached_property
    def inductor(self) -> Mapping[str, str]:
        """What Inductor wrote, by the name of the capture; empty of other stacks."""
        return {
            p.name: read(p, self.artefacts).decode("utf-8", "replace")
            for p in self.evidence.programs
            if p.form == "inductor"
        }

    def bytes_of(self, form: str) -> bytes:
        """A program as it was captured. Raises ProgramError where there is none of that form."""
        if form not in self._programs:
            raise ProgramError(f"{self.label} brought no program of form {form}")
        return read(self._programs[form], self.artefacts)

    def _read(self, form: str) -> Module:
        return read_program(self.bytes_of(form), form)
