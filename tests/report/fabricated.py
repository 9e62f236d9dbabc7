"""Made-up results for the tests of the report. No figure in them was measured."""

from __future__ import annotations

from dataclasses import replace

from detente.records.finding import Finding
from detente.records.result import (
    CellResult,
    CompileColumn,
    Floor,
    ParityColumn,
    Result,
    SessionHead,
    Steady,
)
from detente.records.session import Fingerprint
from detente.records.tensor_error import TensorError
from detente.records.verdict import Verdict

GROUP = "gpt2/paper/train-step/fp32/cpu"
WORST = TensorError("update", "transformer.h.7.mlp.c_fc.weight", 2.1e-9, 6.9e-10, 1.2e-4, 2_359_296, True)


def cell(
    label: str, steady: float | None, status: str = "ok", reason: str = "", **changes: object
) -> CellResult:
    stack = label.split("#", maxsplit=1)[0]
    torch = stack.startswith("torch")
    versions = {"torch": "2.13.0"} if torch else {"jax": "0.10.2", "flax": "0.12.8", "optax": "0.2.8"}
    made = CellResult(
        "gpt2",
        "paper",
        stack,
        label,
        "train-step",
        "fp32",
        "cpu",
        status,
        reason,
        versions=versions,
        group=GROUP,
    )
    if steady is not None:
        made = replace(
            made,
            import_s=2.31 if torch else 1.52,
            build_s=1.04,
            first_s=steady * 1.4 if label == "torch-eager" else 17.7 + steady,
            second_s=steady * 1.08,
            third_s=steady * 1.01,
            steady_s=Steady(steady, steady * 0.988, steady * 1.013, 10, 200),
            compile=CompileColumn(0, 0.0, "none")
            if label == "torch-eager"
            else CompileColumn(3, 16.9, "miss", 17.7 + steady, 3.31),
            memory={"live_tensors": 3_140_000_000, "process_peak": 4_420_000_000}
            if torch
            else {"compiler_estimate": 2_870_000_000, "process_peak": 3_910_000_000},
            floor=Floor(95_400_000_000, 4_000_000_000, 2.31e11, 2.44e10, 0.413, 0.413 / steady, "products"),
            parity=ParityColumn("passed", "passed", WORST, 0.412, 447, 12),
            losses=(10.9743, 9.8211, 9.1054),
        )
    return replace(made, **changes)  # type: ignore[arg-type]


def verdict(
    a: str, b: str, word: str, ratio: float | None, half: float = 0.012, **changes: object
) -> Verdict:
    made = Verdict(
        GROUP,
        a,
        b,
        word,  # type: ignore[arg-type]
        ratio,
        None if ratio is None else ratio * (1 - half),
        None if ratio is None else ratio * (1 + half),
        0.041,
        10,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


# As the judge writes it: the twin first.
OPEN = "the interval holds 1; about 12 blocks needed, 5 measured"
AA = Verdict(GROUP, "jax#aa", "jax", "SAME", 1.006, 0.973, 1.041, 0.02, 10)
MACHINE = {
    "processor": "Made-up Processor 2000",
    "cores": 2,
    "memory_gib": 24.0,
    "system": "Linux 6.8",
    "devices": [],
}


def head(state: str = "whole", aa: Verdict = AA, **changes: object) -> SessionHead:
    made = SessionHead(
        "20261121T091400-3f9c",
        1_795_252_440.0,
        471.3,
        ("detente", "compare", "gpt2", "--budget", "8m"),
        "detente compare gpt2 --size paper --contract train-step --precision fp32 --device cpu --seed 3405691582",
        state,
        10,
        Fingerprint(
            MACHINE,
            {
                "seed": 3405691582,
                "threads": 2,
                "sampling": {"block_s": 0.05},
                "workloads": {GROUP: {"flops": 95_400_000_000}},
            },
            "9f" * 32,
        ),
        {GROUP: 0.041},
        {GROUP: aa},
        peaks={"cpu/fp32": {"flops_per_s": 2.31e11, "bytes_per_s": 2.44e10, "shape": [128, 768, 50257]}},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def whole() -> Result:
    """What a good day looks like, with one of everything that can go differently in a row."""
    shared = "other processes used 11 % of this machine's CPU time meanwhile"
    far = "update transformer.h.3.mlp.c_fc.weight is 675 times over its bound"
    noisy = Finding("machine-shared", "warn", GROUP + "/jax-scan", shared, {"share": 0.11})
    open_ = Finding("clock-drift", "unchecked", GROUP + "/jax", "no clock on this device")
    void = Finding("not-the-same-function", "void", GROUP + "/mine", far)
    cells = (
        cell("jax", 1.02, findings=(open_,)),
        cell("jax#aa", 1.026, findings=(open_,)),
        cell("torch-compile", 1.03, findings=(open_,)),
        cell("torch-eager", 1.45, findings=(open_,)),
        cell("jax-scan", 1.05, findings=(noisy, open_)),
        cell(
            "torch-xla",
            None,
            "skipped",
            "its environment is not there; `detente stacks add torch-xla` makes it",
        ),
        cell("big.py:Huge", None, "oom", "asked for 12.9 GB in phase build with 9.1 GB free"),
        cell(
            "mine.py:Mine",
            0.4,
            "void",
            "not-the-same-function: update transformer.h.3.mlp.c_fc.weight is 675 times over its bound",
            findings=(void,),
            parity=ParityColumn("failed", "failed", WORST, 675.0, 447, 12, "first that differs"),
        ),
        cell(
            "other.py:Other",
            None,
            "failed",
            "ValueError: <script>alert('x')</script> & a \x1b[31mred\x1b[0m word",
        ),
    )
    verdicts = (
        verdict("jax", "torch-compile", "SAME", 0.990, reason="the 90 % interval lies wholly within 4.1 %"),
        verdict(
            "torch-eager",
            "jax",
            "SLOWER",
            1.42,
            reason="the 95 % interval lies wholly beyond the margin of 4.1 %",
        ),
        verdict(
            "jax",
            "jax-scan",
            "UNDECIDED",
            0.971,
            0.05,
            blocks=5,
            needed=12,
            reason="the interval holds 1; about 12 blocks needed, 5 measured",
        ),
        verdict("torch-compile", "torch-eager", "FASTER", 0.71),
        verdict("torch-compile", "jax-scan", "LEANS", 0.981, 0.008, needed=24),
        verdict("mine.py:Mine", "jax", "VOID", None, reason="mine.py:Mine is void"),
    )
    return Result(head(), cells, verdicts)


def drifting() -> Result:
    """The same stack differs from itself: nothing may be compared."""
    good = whole()
    aa = Verdict(GROUP, "jax#aa", "jax", "SLOWER", 1.09, 1.05, 1.13, 0.02, 10)
    return replace(good, session=head("drifting", aa))


def undecided() -> Result:
    """The budget ended too early."""
    cells = (cell("jax", 1.02), cell("torch-eager", 1.04))
    verdicts = (verdict("jax", "torch-eager", "UNDECIDED", 0.98, 0.06, margin=0.02, blocks=5, needed=12),)
    return Result(head("interrupted", margins={GROUP: 0.02}, blocks=5), cells, verdicts)


def two_groups() -> Result:
    """Two comparisons in one session."""
    first = undecided()
    group = "gemm/paper/forward/bf16/cpu"
    cells = tuple(
        replace(c, workload="gemm", contract="forward", precision="bf16", group=group) for c in first.cells
    )
    decided = verdict("jax", "torch-eager", "FASTER", 0.8, group=group, margin=0.02)
    return Result(first.session, (*first.cells, *cells), (*first.verdicts, decided))


def empty() -> Result:
    """A session that was stopped before its first process ended."""
    return Result(head("interrupted", blocks=0), (), ())
