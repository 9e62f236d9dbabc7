"""The museum's catalogue: every exhibit and every fair row, in rooms of one session each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HERE = "tests/museum/"
TORCH, JAX = HERE + "of_torch.py:", HERE + "of_jax.py:"
TORCH_WINDOW, JAX_WINDOW = HERE + "torch_window.py:", HERE + "jax_window.py:"
TORCH_HARNESS, JAX_HARNESS = HERE + "torch_harness.py:", HERE + "jax_harness.py:"
TORCH_TIMERS, JAX_TIMERS = HERE + "torch_timers.py:", HERE + "jax_timers.py:"
JAX_HIDDEN = HERE + "jax_hidden.py:"
BENIGN, BENIGN_JAX = HERE + "benign.py:", HERE + "benign_jax.py:"
OWN, OWN_JAX = HERE + "own_torch.py:", HERE + "own_jax.py:"


class Planted(NamedTuple):
    """``severity`` of the finding, and ``rule``, which must be the one that finds it. ``also`` are rules that the same
    fault really breaks: a step without its update has stale inputs too. ``sample``: part of `make test`."""

    severity: str
    rule: str
    where: str
    also: frozenset[str] = frozenset()
    sample: bool = False


class Room(NamedTuple):
    """One session: every exhibit a row of it, the ``fair`` stacks beside them, which must not be void. ``ffn`` where
    the fault needs no model: its processes start in half the time. ``sampled`` are the fair rows of `make test`;
    ``size`` is empty of a model of one's own, which has one."""

    workload: str
    contract: str
    fair: tuple[str, ...] = ()
    planted: Mapping[str, Planted] = {}
    precision: str = "fp32"
    blocks: int = 1
    sampled: tuple[str, ...] = ()
    size: str = "tiny"


FUNCTION = frozenset({"not-the-same-function"})
UNDONATED = frozenset({"state-not-donated"})
MORE_CORES = frozenset({"more-cores-than-declared"})
NEVER_MOVED = frozenset({"stale-inputs", "regions-differ"}) | FUNCTION
# What a window that does not do its work may break besides the proof of the window.
WINDOW = frozenset(
    {
        "window-not-proved", "handout-is-a-tell", "clock-not-covering", "clock-stops-early", "faster-than-physics",
        "stale-inputs", "regions-differ", "not-the-same-function", "wait-not-idle", "lazy-outputs",
        "compile-in-window", "work-removed", "steps-fused",
    }
)  # fmt: skip


def window(rule: str, where: str) -> Planted:
    return Planted("void", rule, where, WINDOW)


def both(name: str, rule: str) -> dict[str, Planted]:
    """The same fault of the window in torch and in JAX."""
    return {
        name: window(rule, TORCH_WINDOW),
        name + "InJax": window(rule, JAX_WINDOW),
    }


ROOMS: dict[str, Room] = {
    "function": Room(
        "gpt2",
        "train-step",
        ("torch-eager", "jax", "jax-scan", "detente"),
        {
            "ErfGelu": Planted("void", "not-the-same-function", TORCH),
            "Epsilon": Planted("void", "not-the-same-function", TORCH),
            "OtherWeights": Planted("void", "weights-differ", TORCH, FUNCTION),
            "DroppedTie": Planted("void", "not-the-same-function", TORCH, frozenset({"weights-differ"})),
            "Bf16Product": Planted("void", "product-dtypes-differ", TORCH, FUNCTION),
            "Dropout": Planted("void", "modes-differ", TORCH, FUNCTION | {"reference-not-deterministic"}),
        },
    ),
    "step": Room(
        "ffn",
        "train-step",
        ("torch-eager", "jax", "detente", "torch-compile", "torch-compile-model"),
        {
            "Unsynchronised": Planted("void", "clock-stops-early", TORCH, WINDOW, True),
            "ReadsBack": Planted("void", "regions-differ", TORCH),
            "ReadsTheLoss": Planted("void", "regions-differ", TORCH_HARNESS),
            "ReadsTheLossInJax": Planted("void", "regions-differ", JAX_HARNESS),
            "PlacesInsideInJax": Planted("void", "regions-differ", JAX_HARNESS),
            "Stale": Planted("void", "stale-inputs", TORCH, NEVER_MOVED | WINDOW),
            "Wandering": Planted("warn", "reference-not-deterministic", TORCH, WINDOW),
            "OptimizerOutside": Planted("void", "optimizer-outside", TORCH),
            "LossOutside": Planted("void", "optimizer-outside", TORCH),
            "OptimizerOutsideInJax": Planted("void", "optimizer-outside", JAX_HARNESS, UNDONATED),
            "Breaks": Planted("warn", "graph-break", TORCH),
            "Discarded": Planted("void", "work-removed", JAX, NEVER_MOVED | WINDOW | {"state-not-donated"}, True),
            "Recompiling": Planted("void", "compile-in-window", JAX, WINDOW),
            "Undonated": Planted("void", "state-not-donated", JAX),
            "FusesItsQueueInJax": Planted("void", "steps-fused", JAX_HIDDEN),
        },
        sampled=("torch-eager", "jax", BENIGN_JAX + "SnapshotByAProgram"),
    ),
    "harness": Room(
        "ffn",
        "train-step",
        ("torch-eager", "jax"),
        {
            "SleepsInTheWait": Planted("void", "wait-not-idle", TORCH_HARNESS),
            "SleepsInTheWaitInJax": Planted("void", "wait-not-idle", JAX_HARNESS),
            "HalfSpeedTimers": Planted("void", "clock-patched", TORCH_TIMERS, WINDOW, True),
            "HalfSpeedTimersInJax": Planted("void", "clock-patched", JAX_TIMERS, WINDOW),
            "Niced": Planted("void", "priority-differs", TORCH_HARNESS),
            "NicedInJax": Planted("void", "priority-differs", JAX_HARNESS),
            "NicedInTheWindow": Planted("void", "priority-differs", TORCH_HARNESS),
            "OnOtherCores": Planted("void", "affinity-differs", TORCH_HARNESS),
            "OnOtherCoresInJax": Planted("void", "affinity-differs", JAX_HARNESS, MORE_CORES),
            "MoreThreads": Planted("void", "more-cores-than-declared", TORCH_HARNESS),
            # Beside a neighbour a helper gets what the row gives up, and no more cores are busy than declared.
            "WithAHelper": Planted("void", "affinity-differs", TORCH_HARNESS, MORE_CORES),
            "WithAHelperInJax": Planted("void", "affinity-differs", JAX_HARNESS, MORE_CORES),
            "WithADaemon": Planted("void", "affinity-differs", TORCH_HARNESS, MORE_CORES),
            "WithADaemonInJax": Planted("void", "affinity-differs", JAX_HARNESS, MORE_CORES),
            "TurnsTheCollectorOn": Planted("warn", "host-interruptions", TORCH_HARNESS),
            "TurnsTheCollectorOnInJax": Planted("warn", "host-interruptions", JAX_HARNESS),
            "Profiled": Planted("warn", "profiler-on", TORCH_HARNESS),
            "Flagged": Planted("warn", "tuning-differs", TORCH_HARNESS),
            "TwoFrameworks": Planted("void", "two-frameworks", TORCH_HARNESS),
            "FlushesDenormals": Planted("warn", "denormals-differ", TORCH_HARNESS),
            "Bf16Products": Planted("void", "precision-differs", TORCH_HARNESS),
            "UncachedInJax": Planted("warn", "cache-state-differs", JAX_HARNESS),
            "FailsAProbeInJax": Planted("void", "probe-failed", JAX_HARNESS),
            "CompilesTwiceInJax": Planted("warn", "recompiles", JAX_HARNESS),
            "NeverColdInJax": Planted("warn", "cache-state-differs", JAX_HIDDEN),
        },
    ),
    "window": Room(
        "ffn",
        "train-step",
        ("torch-eager", "jax"),
        {
            **both("StopsByCount", "window-not-proved"),
            **both("StopsByTime", "window-not-proved"),
            **both("StopsByBatch", "window-not-proved"),
            **both("StopsByLoad", "window-not-proved"),
            **both("HonestAfterHandOut", "handout-is-a-tell"),
            **both("UpdatesEverySecond", "window-not-proved"),
            **both("HalfOfTheBatch", "window-not-proved"),
            **both("Memoised", "window-not-proved"),
            **both("LastOfTheQueue", "window-not-proved"),
            "DefersToLoss": window("faster-than-physics", TORCH_WINDOW),
            "DefersToLossInJax": window("clock-stops-early", JAX_WINDOW),
            **both("DefersToCompiled", "clock-not-covering"),
            **both("DefersToNextWait", "clock-stops-early"),
            **both("FillsLater", "window-not-proved"),
            **both("Rehearsed", "window-not-proved"),
            **both("PaddedState", "clock-not-covering"),
            **both("Unreplayable", "window-not-proved"),
            "InflatedMoments": window("window-not-proved", TORCH_WINDOW),
            "WithoutItsLoss": window("window-not-proved", TORCH_WINDOW),
            "CopiedLaterInJax": window("clock-not-covering", JAX_HIDDEN),
            "PadsItsStateInJax": window("window-not-proved", JAX_HIDDEN),
            "EditsWhatItHandedInJax": window("window-not-proved", JAX_HIDDEN),
            "AsksFirstInJax": window("told-out-of-order", JAX_HIDDEN),
        },
    ),
    "forward": Room(
        "ffn",
        "forward",
        ("torch-eager", "jax", "detente"),
        {
            "Constants": Planted("void", "weights-baked-in", JAX, frozenset({"compile-in-window"})),
            # Beside a use of the real weights that changes nothing.
            "CapturedBeside": Planted("void", "weights-baked-in", JAX),
            "NotFinite": Planted("void", "lazy-outputs", TORCH, WINDOW),
            "CatsBatches": Planted("void", "steps-fused", TORCH_WINDOW),
            "Remembered": Planted("void", "remembered-results", TORCH_WINDOW, WINDOW),
            "RememberedInJax": Planted("void", "remembered-results", JAX_WINDOW, WINDOW),
            "PlacesAndRemembers": Planted("void", "remembered-results", TORCH_WINDOW, WINDOW),
            # A step of 20 microseconds hides in what placing takes; what is left of it is beyond physics.
            "PlacesAndRemembersInJax": Planted("void", "faster-than-physics", JAX_WINDOW, WINDOW),
        },
    ),
    "gradient": Room(
        "ffn",
        "gradient",
        ("torch-eager", "jax"),
        {
            # What its step would take hides in what reading may take; what is published does not.
            "ReadLaterInJax": window("handout-is-a-tell", JAX_HIDDEN),
            # Nothing was compared, so that nothing differed.
            "KeepsItsGradients": window("window-not-proved", TORCH_WINDOW),
            "AllInItsFirstStepInJax": Planted("void", "remembered-results", JAX_HIDDEN, WINDOW),
        },
    ),
    "threads": Room(
        "ffn", "train-step", (), {"FewerThreads": Planted("warn", "threads-differ", TORCH_HARNESS)}
    ),
    "blocks": Room(
        "ffn",
        "train-step",
        ("torch-eager",),
        {
            "OnlyOnce": Planted("void", "survivors-only", TORCH_HARNESS),
            "Drifts": Planted("void", "versions-drift", TORCH_HARNESS),
        },
        blocks=2,
    ),
    # Honest models that a rule once voided, and beside them what could hide behind the rule as it is now.
    "own-zero-head": Room(
        OWN + "zero_head",
        "train-step",
        ("torch-eager", "detente"),
        {"Stale": Planted("void", "not-the-same-function", TORCH, NEVER_MOVED | WINDOW)},
        size="",
    ),
    # What no weight of the optimizer's is in is kept for each batch, or is a constant of its program.
    "own-frozen": Room(
        OWN + "frozen",
        "train-step",
        ("torch-eager", "detente"),
        {"KeepsItsBackbone": Planted("void", "remembered-results", TORCH_WINDOW, WINDOW)},
        size="",
    ),
    "own-encoded": Room(
        OWN_JAX + "encoded",
        "train-step",
        ("jax",),
        {"InputsBakedIn": Planted("void", "remembered-results", JAX_WINDOW, WINDOW)},
        size="",
    ),
    "own-masked": Room(
        OWN + "masked",
        "forward",
        ("torch-eager", "detente"),
        {"NotFinite": Planted("void", "window-not-proved", TORCH, WINDOW)},
        size="",
    ),
    "own-table": Room(
        OWN_JAX + "table",
        "forward",
        ("jax",),
        {
            "Constants": Planted("void", "weights-baked-in", JAX, frozenset({"compile-in-window"})),
            "CapturedBeside": Planted("void", "weights-baked-in", JAX),
        },
        size="",
    ),
    "fair-own-table": Room(OWN_JAX + "table", "train-step", ("jax",), size=""),
    "fair-own-ranks": Room(OWN_JAX + "ranks", "train-step", ("jax",), size=""),
    # Fair rows alone: workloads, contracts, stacks, precisions, and honest variations.
    "fair-ffn": Room(
        "ffn",
        "train-step",
        (
            "torch-eager", BENIGN + "OtherSeed", BENIGN + "Foreach", BENIGN + "ThreadsAsAsked", BENIGN + "KeepsHandles",
            "jax", BENIGN_JAX + "AheadOfTime", BENIGN_JAX + "BlocksEachStep",
            BENIGN_JAX + "SnapshotByAProgram", BENIGN_JAX + "NumberedHandles", BENIGN_JAX + "CalledRandom",
        ),
    ),
    "fair-ffn-sgd": Room("ffn", "train-step-sgd", ("torch-eager", "jax", "detente")),
    "fair-ffn-gradient": Room("ffn", "gradient", ("torch-eager", "jax", "detente", "torch-compile")),
    "fair-mha": Room("mha", "gradient", ("torch-eager", "jax", "detente")),
    "fair-mha-forward": Room("mha", "forward", ("torch-eager", "jax", "detente")),
    "fair-gemm": Room("gemm", "gradient", ("torch-eager", "jax", "detente")),
    "fair-gemm-forward": Room("gemm", "forward", ("torch-eager", "jax")),
    "fair-gpt2-bf16": Room("gpt2", "train-step", ("torch-eager", "jax"), precision="bf16"),
    "fair-gpt2-forward": Room("gpt2", "forward", ("torch-eager", "jax", "jax-scan")),
    "fair-resnet": Room("resnet", "train-step-sgd", ("torch-eager", BENIGN + "ChannelsLast", "jax")),
}  # fmt: skip

# Rules that a whole session breaks and no row of it: `make museum` runs every room beside a neighbour that computes.
BY_THE_MACHINE = frozenset({"machine-shared"})
