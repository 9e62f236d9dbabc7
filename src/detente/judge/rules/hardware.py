"""The state of the hardware: clocks, neighbours, and what is physically possible."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from detente.judge.floor import impossible
from detente.judge.rules.rule import Group, Hit, Row, Rule, each, on_gpu

# CPU time of others during a row, as a share of the machine. The list of pitfalls names 0.5 of the cores; with
# every core given to the worker a fifth already takes a fifth from it.
FOREIGN = 0.2


def _neighbours(group: Group) -> Iterator[Hit]:
    for row in group.rows:
        foreign = statistics.median(p.foreign for p in row.fine)
        if foreign > FOREIGN:
            yield Hit(
                row,
                f"other processes used {100 * foreign:.0f} % of this machine's CPU time meanwhile",
                {"foreign": foreign, "allowed": FOREIGN},
                # Load on the processor reaches every row of a block; the A/A pair says whether it reached them alike.
                severity="warn",
            )


def _impossible(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    if group.work is None or group.peak is None or row.steady is None:
        return
    if impossible(group.work, group.peak, row.steady):
        floor, bound = group.peak.seconds(group.work)
        yield (
            f"{row.steady:.3g} s a step, the machine's own floor is {floor:.3g} s ({bound}): physically impossible",
            {"steady_s": row.steady, "floor_s": floor, "bound": bound, "peak_flops": group.peak.flops},
        )


RULES = (
    Rule(
        code="clock-drift",
        alias="P21",
        family="hardware",
        severity="warn",
        title="The device's clock moved",
        what="Frequency or power limits changed between the processes that are compared.",
        why="A B200 fell from 1965 to 1580 MHz and lost 15 % (flashinfer 2899); zeros instead of data draw less power "
        "and run 13 % faster.",
        evidence=("device_clock",),
        detected="The device's clock at every sample; medians of processes over 5 % apart.",
        fix="Lock the clock (nvidia-smi -lgc) or rest between processes; feed realistic random data.",
        waive="When the interval over blocks is narrow in spite of it.",
        example="the first process on a cool GPU, the last on a hot one",
        cpu=False,
        applies=on_gpu,
        unchecked="needs the driver's clock of the device beside every sample, and no probe reads it",
    ),
    Rule(
        code="idle-device",
        alias="P22",
        family="hardware",
        severity="warn",
        title="The device idles between steps",
        what="The gap before a step changes the time of the step.",
        why="A sleep between steps changed JAX's step time (jax 24941): clocks and caches go down in it.",
        evidence=("gaps",),
        detected="Correlation between the gap before a step and its time.",
        fix="Queue steps back to back and synchronise once.",
        waive="When the service really idles between requests.",
        example="time.sleep(0.1) between two timed steps",
        cpu=False,
        applies=on_gpu,
        unchecked="needs per-step gaps and times of a device with a clock of its own",
    ),
    Rule(
        code="machine-shared",
        alias="P23",
        family="hardware",
        severity="void",
        title="Others use the machine",
        what="Other processes run on the same processor or device during the measurement.",
        why="They take time from whichever row happens to run, and a harness that spins while it waits is such a "
        "process itself.",
        evidence=("processes",),
        detected="CPU time of all other processes while the worker ran: over a fifth of the machine is a warning "
        "(blocks are paired, so that a steady load hits every row). Foreign processes on the device void the row; "
        "that needs the driver's process list.",
        fix="Stop the other processes, or wait; `detente doctor` lists them.",
        waive="When the A/A pair stays within 2 %.",
        example="a parent that busy-waits for its worker and burns a core",
        cpu=False,
        check=_neighbours,
        applies=lambda row: bool(row.fine),
    ),
    Rule(
        code="faster-than-physics",
        alias="P24",
        family="hardware",
        severity="void",
        title="Physically impossible",
        what="A step takes less time than its arithmetic at the machine's measured peak.",
        why="Whatever the reason, work is missing: 3,530 GB/s were reported on a card of 864 (llm.c 851).",
        evidence=("samples", "floor"),
        detected="floor = max(FLOPs / peak, compulsory bytes / bandwidth), both the best rates that any probe of this "
        "session reached; under 0.8 of it is void, between 0.8 and 1 the peak is raised and the row says so. Where "
        "others "
        "used the machine while its peaks were measured, under 0.1 is void and no row raises anything. Bytes that "
        "fit a "
        "cache (64 MB) bind nothing.",
        fix="Look at clock-stops-early, work-removed and weights-baked-in: one of them explains it.",
        waive="Never.",
        example="0.010 ms for 2.1 GFLOP on a processor that reaches 0.4 TFLOP/s",
        cpu=False,
        check=each(_impossible),
    ),
    Rule(
        code="cache-resident-inputs",
        alias="P25",
        family="hardware",
        severity="warn",
        title="Inputs stay in the cache between repetitions",
        what="A small operation is repeated on the same few megabytes and never goes to memory.",
        why="Flushing the L2 changes a microbenchmark's time by tens of per cent (triton 3943).",
        evidence=("flushed",),
        detected="Hot and flushed runs over 10 % apart.",
        fix="Print both.",
        waive="For whole training steps: their state is far larger than any cache.",
        example="a 1 MB softmax repeated 1,000 times",
        cpu=False,
        applies=on_gpu,
        unchecked="needs a run with the cache flushed on a device whose cache can be flushed",
    ),
)
