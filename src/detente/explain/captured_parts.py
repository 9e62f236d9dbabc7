"""What a capture brought back, divided into parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from detente.programs.count import read_program
from detente.programs.live_memory import LiveMemory, read_live_memory
from detente.programs.module import ProgramError
from detente.programs.operators import kernels_of, seconds_of
from detente.programs.part_table import PartTable, part_table
from detente.programs.xplane import Profile, read_xplane
from detente.records.program import Program

# No program of ours comes near it, and reading one takes a hundred times its size.
LARGEST = 1_000_000_000


@dataclass(frozen=True)
class Divided:
    """A step by part, and what its compiled program holds from operation to operation; None where the compiler tells
    nobody."""

    table: PartTable
    live: LiveMemory | None = None


def form_of(programs: Iterable[Program]) -> str:
    """What a step was handed over as: ``hlo``, or ``operators`` of PyTorch."""
    return "hlo" if any(p.form == "hlo" for p in programs) else "operators"


def executables(programs: Iterable[Program]) -> int:
    """How many programs a step was handed over in. An optimizer outside is one of its own, and of several the first
    alone is read."""
    programs = tuple(programs)
    return sum(p.form == form_of(programs) for p in programs)


def divide(programs: Iterable[Program], artefacts: Path) -> Divided | None:
    """The step that these programs are of; None where none of them can be divided. A step in two programs (an optimizer
    outside) is the first one's: the other is all update.

    Raises ProgramError for what cannot be read, and OSError for a file that is gone.
    """
    programs = tuple(programs)
    found: dict[str, Program] = {}
    for program in programs:
        found.setdefault(program.form, program)
    made = _divided(found, artefacts, executables(programs) == 1)
    if made is None:
        return None
    return replace(made, table=replace(made.table, executables=executables(programs)))


def _divided(found: Mapping[str, Program], artefacts: Path, alone: bool) -> Divided | None:
    if "operators" in found:
        return Divided(_of_operators(read(found["operators"], artefacts)))
    if "hlo" not in found:
        return None
    handed = read_program(read(found["hlo"], artefacts), "hlo")
    if "hlo-optimised" not in found:
        return Divided(part_table(handed, None, {}))
    data = read(found["hlo-optimised"], artefacts)
    live = read_live_memory(data)
    compiled = read_program(data, "hlo-optimised")
    table = part_table(
        handed,
        compiled,
        _seconds(found, artefacts, compiled.name, alone),
        at_peak=live.at_peak if live is not None else None,
    )
    return Divided(table, live)


def _of_operators(data: bytes) -> PartTable:
    module = read_program(data, "operators")
    held, of_kernels = kernels_of(data)
    if held:
        return part_table(module, None, of_kernels, held)
    timed = seconds_of(data)
    return part_table(module, module if timed else None, timed)


def _seconds(found: Mapping[str, Program], artefacts: Path, name: str, alone: bool) -> dict[str, float]:
    if "xplane" not in found:
        return {}
    program = found["xplane"]
    profile = of_program(read_xplane(read(program, artefacts)), name, alone)
    return profile.of_step(steps=program.facts.get("steps"))


def of_program(profile: Profile, name: str, alone: bool) -> Profile:
    """What ran of the program called ``name``. Kernels of another one of the same step may be called the same
    (``fusion.1``). Of a step that is ``alone`` in its profile all is its own, whatever the runtime calls it."""
    if alone and not any(module == name for module, _ in profile.seconds):
        return profile
    mine = {
        part: {key: value for key, value in getattr(profile, part).items() if key[0] == name}
        for part in ("seconds", "runs", "shares")
    }
    return replace(profile, **mine)


def read(program: Program, artefacts: Path) -> bytes:
    """A program's bytes. Raises ProgramError for one that is too large to be read."""
    path = artefacts / program.path
    size = path.stat().st_size
    if size > LARGEST:
        raise ProgramError(
            f"the {program.form} program is {size / 1e9:.3g} GB, more than the {LARGEST / 1e9:.3g} GB that are read: "
            "fewer layers (`--layers 2`) have the same parts"
        )
    return path.read_bytes()
