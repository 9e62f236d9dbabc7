"""Evidence: what a worker brings back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from detente.records.kinks import Kinks
from detente.records.program import Program
from detente.records.sample import Sample
from detente.records.tensor_error import TensorError
from detente.records.window import Replay, Window

CacheState = Literal["miss", "hit", "none", "unknown"]
Status = Literal["ok", "oom", "failed", "skipped", "void"]


@dataclass(frozen=True)
class CompileRecord:
    """Compilations over the process's life.

    events, seconds   as the stack's own counters tell them, up to the end of the third step
    steady_events     inside the steady window; must be 0
    cache_state       ``miss`` (the compile wrote to an empty cache folder), ``hit`` (the folder had entries and
                      nothing was written), ``none`` (the stack has no persistent cache), ``unknown`` (anything else: a
                      compile that wrote beside entries is neither cold nor warm)
    """

    events: int = 0
    seconds: float = 0.0
    steady_events: int = 0
    cache_state: CacheState = "unknown"


@dataclass(frozen=True)
class Evidence:
    """The outcome of one worker process. A worker that dies leaves one too: the parent writes it.

    phase     the phase that was running when it ended: ``import``, ``build``, ``first``, ``second``, ``third``,
              ``reload``, ``proof``, ``steady``, ``probes``, ``done``
    reason    one line: what happened, with values; empty when ok
    *_s       seconds; ``first_s`` runs from the moment that module and optimizer exist in the framework until the
              first loss is on the host, the placing of the first batch included (not so before 28 November)
    losses    of the three timed steps
    window    what is known of the steady window besides its samples; None of processes that time nothing, and of those
              that were measured before windows were proved
    replays   what a ``replay`` process found of the windows that it was given, by ``replay_name`` of their processes
    probes    key -> what the probe of that name found (plain JSON). Rules read these
    killed    the signal of somebody else that ended it (``SIGKILL``): neither the worker itself failed, nor was it the
              user or a time limit, nor, as far as can be told, a lack of memory. ``--resume`` runs such a one again
    kinks     of the function and of the weights that were proved; None of processes that prove nothing
    left      what the worker left running after its evidence, and what therefore was ended: threads, child processes
    """

    status: Status
    phase: str
    reason: str = ""
    import_s: float | None = None
    build_s: float | None = None
    first_s: float | None = None
    second_s: float | None = None
    third_s: float | None = None
    losses: tuple[float, ...] = ()
    samples: tuple[Sample, ...] = ()
    compile: CompileRecord = CompileRecord()
    errors: tuple[TensorError, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    programs: tuple[Program, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    probes: dict[str, Any] = field(default_factory=dict)
    window: Window | None = None
    replays: dict[str, tuple[Replay, ...]] = field(default_factory=dict)
    killed: str = ""
    left: str = ""
    kinks: Kinks | None = None
