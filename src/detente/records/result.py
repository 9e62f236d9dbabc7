"""A result: a judged session, as every reader of it (terminal, Markdown, HTML, JSON) gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from detente.records import shown
from detente.records.finding import Finding
from detente.records.kinks import Kinks
from detente.records.program import Program
from detente.records.session import Fingerprint
from detente.records.tensor_error import TensorError
from detente.records.verdict import Verdict


@dataclass(frozen=True)
class Steady:
    """Seconds per step over processes: the median of process medians, and a 95 % interval of their geometric mean
    (low and high are None under three processes)."""

    median: float
    low: float | None
    high: float | None
    processes: int
    samples: int


@dataclass(frozen=True)
class CompileColumn:
    """``cold_first_s`` and ``warm_first_s`` are medians of ``first_s`` over processes of that cache state."""

    events: int
    seconds: float
    cache_state: str
    cold_first_s: float | None = None
    warm_first_s: float | None = None
    steady_events: int = 0


@dataclass(frozen=True)
class Floor:
    """The physical floor of one step. ``share`` = seconds / steady median: 1.0 would be the machine's limit; None where
    a machine that was measured beside others would be exceeded."""

    flops: int
    bytes: int
    peak_flops: float
    peak_bytes: float
    seconds: float
    share: float | None
    bound: str
    note: str = ""


@dataclass(frozen=True)
class ParityColumn:
    """Both proof levels. ``same_function`` and ``same_precision`` are ``passed``, ``failed``, ``inherited`` (from the
    CPU run, where a device has no fp64) or ``not checked``. ``worst`` is the tensor nearest to its bound, or the
    first that differs; ``share`` its error over its bound. ``listed`` counts tensors too small to be judged.
    ``unseen`` is the relative error of a gradient (of an output or update, where there are none) that could not have
    been seen; ``kinks`` what was met where the function has no derivative, None where nothing was looked for.
    ``function_at`` is the size at which the function was proved, empty where it was not; ``precision_at`` that of the
    other level, where it is not the timed one; ``layer`` names the first layer that differs, of a pair of a user's
    models whose proof failed.
    """

    same_function: str
    same_precision: str
    worst: TensorError | None = None
    share: float | None = None
    tensors: int = 0
    listed: int = 0
    reason: str = ""
    unseen: float | None = None
    kinks: Kinks | None = None
    function_at: str = ""
    precision_at: str = ""
    layer: str = ""


@dataclass(frozen=True)
class CellResult:
    """One row. ``contract`` is the contract's name, or ``out-of-the-box`` for such a recipe. ``*_s`` are medians over
    processes, in seconds; ``first_s`` is the cold one where the stack compiles and a cold process ran.

    phases    where a process's time goes: median seconds by phase, of the processes behind the row's first, which also
              compiles cold, proves gradients and runs every probe; of the first where there is no other
    practice  which of its framework's documented practices the row follows, as its own objects say
    arm       what is otherwise in this row than in its stack, ``donation=off``; empty for the stack as it is
    """

    workload: str
    size: str
    stack: str
    label: str
    contract: str
    precision: str
    device: str
    status: str
    reason: str = ""
    import_s: float | None = None
    build_s: float | None = None
    first_s: float | None = None
    second_s: float | None = None
    third_s: float | None = None
    steady_s: Steady | None = None
    compile: CompileColumn | None = None
    memory: dict[str, int] = field(default_factory=dict)
    floor: Floor | None = None
    parity: ParityColumn | None = None
    findings: tuple[Finding, ...] = ()
    programs: tuple[Program, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    group: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    practice: str = ""
    arm: str = ""


@dataclass(frozen=True)
class MachineLoad:
    """What others did to the machine while the blocks ran.

    share    mean share of the machine's CPU time that others used, over the whole blocks; None where nobody knows
    worst    the same in the block where it was largest
    busy     blocks, counted, in which it was over ``allowed``
    unknown  timing processes whose load was not recorded (imported sessions)
    waited_s, gave_up   seconds that the session waited for a quiet machine, and whether it went on without one
    names    who used it, the largest first
    reason   why no SAME is said and no small difference leads; empty on a quiet machine
    """

    share: float | None
    worst: float | None
    allowed: float
    busy: int = 0
    unknown: int = 0
    waited_s: float = 0.0
    gave_up: bool = False
    names: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class NoiseColumn:
    """What the machine alone does to a group. ``bound``: how far equal programs may lie apart, by the A/A pair, without
    a cap; ``known``: whether that pair came to an end. ``rho``: the correlation between neighbouring blocks that the
    intervals were widened for; ``own_rho``: the session's own estimate of it (None under four blocks)."""

    bound: float
    known: bool
    rho: float
    own_rho: float | None = None


@dataclass(frozen=True)
class SessionHead:
    """The session itself. ``state`` is ``whole``, ``interrupted``, ``drifting`` (the A/A pair lies wholly beyond
    2 %: no ratio is printed) or ``unjudged``. ``margins`` maps a group to its margin, ``aa`` to its A/A verdict,
    ``noise`` to what the margin does not say; ``load`` is what others did meanwhile.

    wall_s     seconds from start to end; None where the machine's clock was set back in between
    imported   seconds since the epoch when it was taken from a file; None: measured here
    again      processes that something outside killed and that ran again, a line each
    """

    id: str
    started: float
    wall_s: float | None
    command: tuple[str, ...]
    rerun: str
    state: str
    blocks: int
    fingerprint: Fingerprint
    margins: dict[str, float] = field(default_factory=dict)
    aa: dict[str, Verdict] = field(default_factory=dict)
    note: str = ""
    peaks: dict[str, Any] = field(default_factory=dict)
    load: MachineLoad | None = None
    noise: dict[str, NoiseColumn] = field(default_factory=dict)
    imported: float | None = None
    again: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """The object that ``detente compare --format json`` prints, schema ``detente/compare/1``."""

    session: SessionHead
    cells: tuple[CellResult, ...]
    verdicts: tuple[Verdict, ...]

    def __repr__(self) -> str:
        return shown.as_text(self)

    def _repr_html_(self) -> str:
        """Rows and verdicts as two tables, for a notebook; `detente report SESSION --html` writes the whole page."""
        return shown.as_html(self)

    def to_dataframe(self) -> Any:
        """A pandas DataFrame of the rows: names, status, seconds, bytes. Raises MachineFault without pandas."""
        return shown.as_dataframe(self)
