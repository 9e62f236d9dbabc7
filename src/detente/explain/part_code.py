"""The code of one part of a captured step: as it was handed to the compiler, and what the compiler made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from detente.explain.side import Side
from detente.programs.fold import fold, is_called
from detente.programs.module import Instruction, Module
from detente.programs.operators import kernels_of
from detente.programs.parts import FREE, Part, grouped, kernels, parts
from detente.programs.shown_operation import shown_operation

# What a fusion holds is shown below it, so far in.
_INSIDE = "    "


def parts_named(side: Side, wanted: str) -> tuple[Part, ...]:
    """The parts that ``h.*.attn``, ``h.0.attn`` or ``h.0.attn backward`` names, in the program's order."""
    path, _, direction = wanted.partition(" ")
    found = dict.fromkeys(site.part for site in side.sites)
    return tuple(part for part in found if is_called(part.path, path) and direction in ("", part.direction))


def part_code(side: Side, wanted: str) -> dict[str, list[str]]:
    """Form of a program -> its lines that are of that part. Of equal layers the first alone; one that differs stands
    behind it. Empty where the program has no such part."""
    named = parts_named(side, wanted)
    if not named:
        return {}
    table = parts(side.sites)
    mine = {layers.members[0] for layers in fold({part: table[part] for part in named})}
    found = {
        side.form: [
            shown_operation(s.operation, s.home) for s in side.sites if s.part in mine and s.how != "none"
        ]
    }
    if side.compiled is not None:
        found["hlo-optimised"] = list(_compiled(side.compiled, mine))
    if side.form == "operators" and (texts := side.inductor):
        found["inductor"] = list(_inductor(side, texts, mine))
    return {form: lines for form, lines in found.items() if lines}


def _compiled(module: Module, wanted: set[Part]) -> Iterator[str]:
    """The kernels of these parts, each fusion with what it holds."""
    names = {k.name for k in kernels(module) if k.part in wanted}
    for home in module.computations.values():
        for one in home.instructions:
            if one.name in names:
                yield shown_operation(one, home)
                yield from _inside(module, one)


def _inside(module: Module, one: Instruction) -> Iterator[str]:
    for name in one.called if one.opcode == "fusion" else ():
        home = module.computations[name]
        for inner in home.instructions:
            if inner.opcode not in FREE:
                yield _INSIDE + shown_operation(inner, home)


def _inductor(side: Side, texts: Mapping[str, str], wanted: set[Part]) -> Iterator[str]:
    """The source of these parts' kernels; of an operator of torch's, the line that calls it."""
    held, _ = kernels_of(side.bytes_of("operators"))
    for kernel in grouped(side.sites, held):
        if kernel.part not in wanted:
            continue
        which, _, name = kernel.name.partition(".")
        text = texts.get(f"kernels-{which}", "")
        yield from _source(text, name)


def _source(text: str, kernel: str) -> Iterator[str]:
    """Of ``cpp_fused_add_0:3`` the C++; of ``extern_kernels.mm:2`` the call under its comment."""
    name = kernel.rpartition(":")[0]
    made = re.search(
        rf"^{re.escape(name)} = async_compile\.\w+\(.*?r?'''(.*?)'''", text, re.DOTALL | re.MULTILINE
    )
    if made:
        yield f"// {kernel}"
        yield from made[1].strip().splitlines()
        return
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line.strip() == f"# [Provenance debug handles] {kernel}" and at + 1 < len(lines):
            yield lines[at + 1].strip()
