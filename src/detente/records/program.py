"""A captured program, as evidence carries it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Program:
    """A captured computation. The bytes lie in a file named by their SHA-256; the record carries the facts.

    form       ``hlo`` (HloModuleProto before optimisation), ``hlo-optimised``, ``stablehlo`` (text), ``fx``,
               ``inductor``
    name       what the stack calls it (``step``)
    sha256     of the file's bytes
    path       file in the worker's artefact folder, relative
    bytes      size of the file
    facts      counts that only the stack knows: argument, output, temp and alias bytes, generated code bytes
    """

    form: str
    name: str
    sha256: str
    path: str
    bytes: int
    facts: dict[str, float] = field(default_factory=dict)
