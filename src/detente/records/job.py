"""A job: what the parent asks one worker process to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from detente.records.cell import Cell

JobKind = Literal[
    "prepare",
    "weights",
    "time",
    "prove",
    "plan",
    "fits",
    "memory",
    "smallest",
    "capture",
    "probe",
    "check",
    "tune",
    "kernels",
    "replay",
]


@dataclass(frozen=True)
class Sampling:
    """How a timing process samples its steady state.

    block_s     shortest block of queued steps between two readings, seconds (at least 50 ms)
    samples     wanted number of samples
    least       fewest samples that make a median
    seconds     stop after this long once ``least`` samples exist
    """

    block_s: float = 0.05
    samples: int = 20
    least: int = 5
    seconds: float = 4.0


@dataclass(frozen=True)
class Job:
    """One worker process. Everything that the worker needs is here; it reads no configuration of its own.

    prepared    folder that the prepare job filled: weights, batches, references (see worker/prepared.py)
    artefacts   folder for captured programs
    cache       compile-cache folder of this stack; empty means cold
    threads     CPU threads that the process may use; affinity is set by the parent before the start
    full_proof  also prove gradients (compiles a gradient program of its own on some stacks); the loss and the
                parameters after the three timed steps are compared in every process
    probes      names of the probes to run, in order; each fills one key of the evidence
    handed      folder for the states around the window's stretches, to be taken again by a ``replay`` job. Every
                timing process has one, and learns behind its window whether it is to be filled
    memory      file descriptor of the session's memory for handed-out states, which timing processes inherit, and
                ``prepare``, which writes it ahead; -1: none
    replays     name of a process -> such a folder: what a ``replay`` job takes again
    kept        name of such a process -> what the parent heard it say of that folder (``Window.kept``)
    foreign     files of another stack's program (``hlo`` and ``signature``, or ``exported``) that a row under the arm
                ``program`` runs
    """

    kind: JobKind
    cell: Cell
    seed: int
    prepared: str
    artefacts: str
    cache: str
    threads: int = 2
    batches: int = 4
    full_proof: bool = False
    probes: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    handed: str = ""
    memory: int = -1
    replays: dict[str, str] = field(default_factory=dict)
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
