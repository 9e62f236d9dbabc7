"""Memory: labelled columns that do not mean the same, and state that is held twice."""

from __future__ import annotations

from collections.abc import Iterator

from detente.judge.rules.rule import Group, Row, Rule, each, moving_bytes, on_gpu, train_step

# Share of the state that must be handed over in place.
LEAST_DONATED = 0.98


def _donated(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    state, donated = moving_bytes(row), row.get("program.alias_bytes", 0)
    # torch_xla donates when it dispatches, which its graph does not say: it counts buffers, and there each tensor of
    # the state is one.
    if row.get("observed.aliased", 0) >= row.get("region.parameters", 1) > 0:
        return
    if state and donated < LEAST_DONATED * state:
        yield (
            f"{donated:.4g} of {state:.4g} bytes of state are donated: the rest is held twice and copied in every step",
            {"donated_bytes": donated, "state_bytes": state},
        )


def _compile_scratch(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for p in row.others:
        if p.kind == "memory" and p.evidence.compile.cache_state == "miss":
            yield (
                "the memory process compiled with a cold cache: its peak may be the compiler's and not the step's",
                {"cache_state": "miss", "memory": dict(p.evidence.memory)},
            )
            return


RULES = (
    Rule(
        code="preallocation",
        alias="P26",
        family="memory",
        severity="void",
        title="Preallocation is read as use",
        what="The driver's figure shows what the framework reserved, not what the step needs.",
        why="JAX takes three quarters of the device at the first operation.",
        evidence=("preallocation",),
        detected="The jump of the driver's figure when the framework starts; memory columns of the driver are then "
        "not compared.",
        fix="XLA_PYTHON_CLIENT_PREALLOCATE=false in the memory process, never in the timing process.",
        waive="Columns of the allocator and the compiler are not touched by it.",
        example="nvidia-smi: 60 GB for a model of 1 GB",
        cpu=False,
        applies=on_gpu,
        unchecked="needs the driver's figure of a device before and after the framework starts",
    ),
    Rule(
        code="allocator-peaks-differ",
        alias="P27",
        family="memory",
        severity="warn",
        title="Allocator peaks mean different things",
        what="Graph pools, workspaces and contexts count in one framework's figure and not in another's.",
        why="A CUDA context alone is half a gigabyte; reserved is not allocated.",
        evidence=("driver_memory",),
        detected="Driver's figure minus context minus allocator's peak, over 10 %. Columns are labelled and never "
        "merged, whatever this says.",
        fix="Compare the same label on both sides, or the smallest cap that still runs.",
        waive="Within one framework.",
        example="max_memory_reserved against peak_bytes_in_use",
        cpu=False,
        applies=on_gpu,
        unchecked="needs the driver's memory per process",
    ),
    Rule(
        code="peak-includes-compile",
        alias="P28",
        family="memory",
        severity="warn",
        title="The peak is the compiler's",
        what="Autotuning and compilation allocate more than the step; the process peak then shows them.",
        why="VmHWM never goes down, and JAX offers no reset of its peak.",
        evidence=("memory process",),
        detected="A memory process whose compile missed the cache.",
        fix="Measure memory in a process of its own, after the cache is warm.",
        waive="When the question is whether the whole job fits.",
        example="Inductor's compile workers in the same process group",
        cpu=False,
        check=each(_compile_scratch),
        applies=lambda row: any(p.kind == "memory" for p in row.others),
    ),
    Rule(
        code="state-not-donated",
        alias="P29",
        family="memory",
        severity="void",
        title="State is not donated on one side",
        what="One side writes parameters and optimizer state in place, the other into new memory.",
        why="Without donate_argnums JAX holds the state twice and copies it through memory: 1.5 GB more for GPT-2 "
        "Small, in memory and in traffic.",
        evidence=("program.alias_bytes", "region.state_bytes"),
        detected="Bytes that the captured program aliases between its arguments and its results, at least 0.98 of what "
        "a step changes of parameters, buffers and moments (a frozen backbone is held once anyway). PyTorch's own "
        "optimizers write in place, and rows that give no program away are not asked.",
        fix="jax.jit(step, donate_argnums=(0, 1)); nnx.jit(..., donate_argnums=...).",
        waive="For the contracts forward and gradient: there is no new state.",
        example="params, state = step(params, state, batch)   # without donate_argnums",
        cpu=True,
        check=each(_donated),
        applies=lambda row: train_step(row) and row.compiled in ("program", "unknown"),
    ),
)
