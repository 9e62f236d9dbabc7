"""Warm-up and compilation: is the steady state steady, and are cold and warm told apart?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detente.judge.rules.rule import Group, Hit, Row, Rule, each

PRECISION = re.compile("precision|matmul")


def _in_window(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for p in row.fine:
        record = p.evidence.compile
        events = max(record.steady_events, sum(s.compile_events for s in p.evidence.samples))
        if events:
            yield (
                f"{events} compilation{'s' if events > 1 else ''} inside the steady window of block {p.block}",
                {"steady_events": events, "block": p.block, "events_before": record.events},
            )
            return


def _again(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    steady = row.steady
    if steady is None:
        return
    for name in ("second", "third"):
        times = [getattr(p.evidence, f"{name}_s") for p in row.fine if p.evidence.compile.events > 0]
        firsts = [p.evidence.first_s for p in row.fine if p.evidence.first_s is not None]
        known = [t for t in times if t is not None]
        if not known or not firsts:
            continue
        # The least over processes: a stutter of the machine hits one, a recompilation hits all.
        least = min(known)
        if least - steady > max(2 * steady, 0.25 * min(firsts)):
            yield (
                f"the {name} step takes {least:.3g} s against {steady:.3g} s in the steady state: it compiled again",
                {f"{name}_s": least, "steady_s": steady, "first_s": min(firsts)},
            )


def _cache_states(group: Group) -> Iterator[Hit]:
    for row in group.rows:
        if row.compiled in ("program", "regions") and not any(p.evidence.compile.events for p in row.fine):
            yield Hit(
                row,
                "no cold start was measured: it runs compiled programs, and nobody counted a compilation",
                {"compiled": row.compiled},
                severity="warn",
            )
    compiling = [row for row in group.rows if any(p.evidence.compile.events for p in row.fine)]
    states = {row.cell.key: {p.evidence.compile.cache_state for p in row.fine} for row in compiling}
    someone_cold = any("miss" in s for s in states.values())
    for row in compiling:
        mine = states[row.cell.key]
        if "none" in mine:
            continue
        if "miss" not in mine and (someone_cold or "unknown" in mine):
            yield Hit(
                row,
                f"no cold start was measured (cache state: {', '.join(sorted(mine))}): its compile column stands alone",
                {"cache_states": sorted(mine)},
                # What differs is the compile column; steady state and its ratio are untouched.
                severity="warn",
            )


def _programs(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    hashes = row.every("executable.hash")
    distinct = sorted(set(hashes))
    if len(distinct) > 1:
        yield (
            f"{len(distinct)} different programs over {len(hashes)} processes: the row is a mixture",
            {"hashes": distinct},
        )


def tuned(row: Row) -> dict[str, object]:
    """What of a row's flags is not the framework's default: compiler flags, autotuning, freezing. Flags of precision
    belong to the contract, and precision-differs looks at what they do."""
    return {k: v for k, v in (row.get("flags") or {}).items() if not PRECISION.search(k)}


def _tuning(group: Group) -> Iterator[Hit]:
    flags = {row.cell.key: tuned(row) for row in group.rows}
    if all(flags.values()) or not any(flags.values()):
        return
    for row in group.rows:
        mine = flags[row.cell.key]
        if mine:
            listed = ", ".join(f"{k}={v}" for k, v in sorted(mine.items()))
            yield Hit(row, f"tuned ({listed}), other rows run with defaults", {"tuning": mine})


RULES = (
    Rule(
        code="compile-in-window",
        alias="P16",
        family="warmup",
        severity="void",
        title="Compilation inside the window",
        what="A compilation, trace or graph capture happened while the steady state was being timed.",
        why="`The first run includes compilation` is false: one model compiled 1,526 times in run one, 415 times in "
        "run two and never in run three (pytorch/xla 6541).",
        evidence=("compile", "samples"),
        detected="The stack's own counter of compilations, traces and captures may not move inside the window.",
        fix="Warm up until the counter stands still; fix shapes and dtypes.",
        waive="Never for a steady state; time to first result is a column of its own.",
        example="a last, smaller batch of the epoch inside the timed loop",
        cpu=True,
        check=each(_in_window),
    ),
    Rule(
        code="recompiles",
        alias="P17",
        family="warmup",
        severity="warn",
        title="Recompilation from shapes, dtypes or weak types",
        what="The second or third step compiles again.",
        why="torch_xla compiles its lazy step twice, JAX again when a weakly typed learning rate comes back strongly "
        "typed: the user pays, and one warm-up step is not enough.",
        evidence=("compile", "samples"),
        detected="Second and third step against the steady state, in stacks that compile: more than twice on top of "
        "it, and a quarter of the first step, in every process.",
        fix="Return the state with the dtypes and shapes it came in with; mark dynamic dimensions.",
        waive="A property of the stack: it is said on the row, and the row is compared.",
        example="torch_xla: first 5.2 s, second 5.2 s, steady 0.96 s",
        cpu=True,
        check=each(_again),
    ),
    Rule(
        code="cache-state-differs",
        alias="P18",
        family="warmup",
        severity="void",
        title="Cold on one side, warm on the other",
        what="Compile columns compare a cold cache on one side with a warm one on the other.",
        why="The same model compiled in 117 s and in 2.3 s with the cache; two harnesses disagreed by 2x because one "
        "did not clear it (pytorch/benchmark 1547).",
        evidence=("compile", "samples"),
        detected="The state is decided by what the compile wrote to the cache folder, which was empty, as long as the "
        "compiler is told to look there alone (its variables, JAX's setting) and read nothing that it had not written "
        "(JAX's own account of what its cache saved). A row without a cold process beside one that has one is flagged, "
        "and one whose programs nobody counted a compilation of; the flag is a warning, because only the compile "
        "columns are void.",
        fix="Give every stack one process with an empty cache folder.",
        waive="Steady-state ratios do not depend on it.",
        example="TORCHINDUCTOR_CACHE_DIR left over from yesterday",
        cpu=True,
        check=_cache_states,
    ),
    Rule(
        code="autotune-lottery",
        alias="P19",
        family="warmup",
        severity="warn",
        title="Autotuning picks another kernel in another process",
        what="Several processes of one row run different programs, so that its spread is a mixture.",
        why="XLA's documentation says that GEMM autotuning may choose differently in each compilation; swings of 10 "
        "to 20 % have been measured on large products.",
        evidence=("executable.hash of two processes",),
        detected="The hash of the optimised program of each process; several hashes are several programs. On a CPU "
        "nothing is tuned unless a flag says so.",
        fix="Store and reload autotuning results, or report each program apart.",
        waive="When the lottery is what users get: the interval over processes then includes it.",
        example="cudnn.benchmark=True with two algorithms 3 % apart",
        cpu=False,
        check=each(_programs),
        applies=lambda row: row.compiled != "none" and (row.platform != "cpu" or bool(tuned(row))),
    ),
    Rule(
        code="tuning-differs",
        alias="P20",
        family="warmup",
        severity="warn",
        title="One side was tuned, the other was not",
        what="Compiler modes and flags beyond the defaults on some rows only.",
        why="max-autotune against defaults, fp16 against fp32 max-autotune, triton_gemm off for one side: the table "
        "then measures the patience of its author.",
        evidence=("flags",),
        detected="Compiler variables of the environment and Inductor's switches that spend compile time on speed, "
        "after "
        "the window; tuned beside untuned is said, with the flags. A mode that is given to one call of torch.compile "
        "leaves no trace there and is not seen.",
        fix="Spend the same effort on every side, or none; both as rows.",
        waive="When the flags are the question: name the rows after them.",
        example="torch.compile(mode='max-autotune') against jax.jit",
        cpu=False,
        check=_tuning,
    ),
)
