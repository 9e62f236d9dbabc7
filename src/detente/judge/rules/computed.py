"""What is actually computed: all of it, anew in every step, where the row says it was."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from detente.judge.parity import relative_floor
from detente.judge.rules.rule import Group, Hit, Row, Rule, each, moving_bytes, on_gpu, train_step
from detente.records.captured import constants_allowed
from detente.records.precision import PRECISIONS

# A program may count this share of the workload's closed form and still do all of its work.
LEAST_FLOPS = 0.98
# Of what single steps start, a queue of them may start so much: a first step may place a constant, two steps that are
# one are a half.
ALONE = 0.7
# Arguments that a program does not use (counters of random streams) are dropped by jit.
LEAST_ARGUMENTS = 0.99
# Elements that eager operators may change by arithmetic, as a share of the parameters', before it is an update.
EAGER_UPDATE = 0.5
# Share of parameters and moments that a program must return for the optimizer to be inside of it.
LEAST_RETURNED = 0.98
# Of losses of the reference, in float64: closer ones are one, and the rest is rounding.
ONE_LOSS = 1e-12


def _removed(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    flops = row.get("program.flops")
    # Where a loop's length is unknown the count is only a lower bound, and proves nothing.
    bounded = not row.get("program.unknown_loops")
    if (
        flops is not None
        and bounded
        and group.work is not None
        and flops < LEAST_FLOPS * group.work.least_flops
    ):
        least = group.work.least_flops
        share = 100 * flops / least
        yield (
            f"the program has {flops:.4g} FLOPs, {share:.3g} % of the workload's {least:.4g}: work was removed",
            {"program_flops": flops, "workload_flops": least},
        )
    yield from _removed_eagerly(row, group)
    for consumed in row.every("consumed"):
        # A training step returns its loss and its new state, whose movement stale-inputs watches. A forward of a user's
        # own may be its loss alone: eager itself was void for it.
        if not consumed.get("outputs") and consumed.get("owed", True) and not train_step(row):
            yield (
                "nothing was read back after the window: dead code may have been removed",
                {"consumed": consumed},
            )
            return


def _removed_eagerly(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    """The same of rows that give no program away: what torch's dispatcher saw, where it knows every operator, against
    what the workload states. (Another program's count says little of one: it may multiply for a sum.)"""
    flops, work = row.get("observed.flops"), group.work
    if (
        flops is None
        or row.has("program.flops")
        or row.get("observed.opaque")
        or work is None
        or work.counted
    ):
        return
    if flops < LEAST_FLOPS * work.least_flops:
        yield (
            f"its operators have {flops:.4g} FLOPs, {100 * flops / work.least_flops:.3g} % of the workload's "
            f"{work.least_flops:.4g}: work was left out",
            {"operator_flops": flops, "workload_flops": work.least_flops},
        )


def _fused(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for seen in row.every("observed"):
        queue = seen.get("queue")
        if not queue:
            continue
        steps = queue["steps"]
        for what, least in (
            ("launches", steps),
            ("regions", steps),
            ("operators", steps * seen.get("operators", 0)),
        ):
            started = queue.get(what)
            if started is not None and seen.get(what) and started < ALONE * least:
                said = (
                    "executables" if what == "launches" else f"compiled {what}" if what == "regions" else what
                )
                yield (
                    f"a queue of {steps} steps ran {started} {said}, and one step alone runs {seen[what]}: steps of a "
                    "queue are computed together, which no loop has that looks at its loss",
                    {"queue": queue, what: seen[what]},
                )
                return


def _baked(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    weights = row.get("weights.bytes")
    arguments, constants = row.get("program.argument_bytes"), row.get("program.constants_bytes")
    # Where a step is several programs, the moments may be another one's arguments: optimizer-outside says so.
    alone = (row.get("observed.launches") or 1) <= 1
    state = (row.get("region.state_bytes") if alone else None) or weights
    if row.get("observed.frozen"):
        yield (
            "Inductor is told to freeze parameters into its programs: products with them are folded",
            {"frozen": True},
        )
    many = constants is not None and weights and constants > constants_allowed(weights)
    if many and not _read_anew(row, weights):
        yield (
            f"{constants:.4g} bytes of constants in the program, beside {weights:.4g} bytes of weights: "
            "captured, so that products with them can be folded",
            {"constants_bytes": constants, "weights_bytes": weights, "captured": row.get("captured")},
        )
    elif arguments and state and arguments < LEAST_ARGUMENTS * state:
        yield (
            f"the program takes {arguments:.4g} bytes of arguments, its state has {state:.4g}: "
            "part of it is captured instead of passed",
            {"argument_bytes": arguments, "state_bytes": state},
        )


def _read_anew(row: Row, weights: int) -> bool:
    """Whether other weights changed what the program says, and it was not compiled for them: what it holds is none."""
    unread, compiled = row.get("captured.unread_bytes"), row.get("captured.compiled")
    return unread is not None and not compiled and unread <= constants_allowed(weights)


def _stale(group: Group) -> Iterator[Hit]:
    for row in group.rows:
        yield from _one_loss(row)
        if train_step(row) and any(moved == 0 for moved in row.every("region.moved")):
            yield Hit(
                row,
                "the parameters did not move over a training step: the state is stale",
                {"region": row.get("region")},
            )


def _one_loss(row: Row) -> Iterator[Hit]:
    """What to say of different batches with one loss: that they were not read, or that nothing tells them apart."""
    floor = relative_floor(PRECISIONS[row.cell.contract.precision], "loss")
    for found in row.every("rotation"):
        losses = list(found.get("losses") or ())
        told = [_told(found, i, j, floor) for i, j in itertools.combinations(range(len(losses)), 2)]
        if False in told:
            distinct = {repr(x) for x in losses}
            yield Hit(
                row,
                f"{len(losses)} different batches gave {len(distinct)} different losses: "
                "inputs are stale or results replayed",
                dict(found),
            )
            return
        if None in told:
            yield Hit(
                row,
                f"not checked: in part: at these weights several batches have one loss ({losses[0]:.4g}), here and in "
                "the reference, and nothing else that a step leaves tells them apart",
                dict(found),
                severity="unchecked",
            )
            return


def _told(found: dict, i: int, j: int, floor: float) -> bool | None:
    """Whether two batches were told apart; None where the function itself does not. Their losses say so, or whatever
    else depends on the batch: losses behind some steps, and what is returned. Where the reference has two losses and
    the row has one, nothing else counts."""
    losses, right = found["losses"], found.get("reference") or ()
    if repr(losses[i]) != repr(losses[j]):
        return True
    known = len(right) > j
    apart, size = (abs(right[i] - right[j]), max(abs(right[i]), abs(right[j]))) if known else (math.inf, 0.0)
    if known and apart > floor * size:
        return False
    looks = [*(found.get("further") or ()), found.get("returned") or ()]
    if any(len(look) > j and repr(look[i]) != repr(look[j]) for look in looks):
        return True
    # A loss that its precision rounds to another batch's is one thing, a function with one loss another.
    return None if apart <= ONE_LOSS * size else False


def _lazy(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for consumed in row.every("consumed"):
        if consumed.get("finite") is False:
            yield (
                "an output read back after the window is not finite, and the reference's is",
                {"consumed": consumed},
            )
            return


def _breaks(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    breaks = max(row.every("observed.graph_breaks"), default=0)
    launches = row.get("observed.launches", 0)
    if breaks:
        yield (
            f"{breaks} graph break{'s' if breaks > 1 else ''}: the compiled region is in {breaks + 1} pieces",
            {"graph_breaks": breaks, "regions": row.get("observed.regions")},
        )
    elif launches > 1:
        yield f"one step starts {launches} programs instead of one", {"launches": launches}


def _compiled_extent(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    # A recipe that says `out-of-the-box` has declared it; a stack that compiles nothing has nothing outside.
    if row.recipe == "out-of-the-box" or row.compiled == "none":
        return
    eager, updated = row.get("observed.eager_ops") or {}, row.get("observed.updated", 0)
    launches, returned = row.get("observed.launches", 0), row.get("program.output_bytes")
    state = moving_bytes(row)
    if train_step(row) and updated >= EAGER_UPDATE * max(1, row.get("observed.parameters", 1)):
        yield (
            f"operators outside of the compiled regions changed {updated:.4g} elements, as many as an update does: the "
            "optimizer is not compiled, and the row stands under whole-step",
            {"updated": updated, "parameters": row.get("observed.parameters"), "eager_ops": eager},
        )
    elif eager:
        named = ", ".join(f"{name.removeprefix('aten::')} x{n}" for name, n in sorted(eager.items())[:6])
        yield (
            f"operators ran outside of the compiled regions ({named}), and the row stands under whole-step",
            {"eager_ops": eager},
        )
    elif train_step(row) and launches > 1 and returned and state and returned < LEAST_RETURNED * state:
        yield (
            f"a step starts {launches} programs, and the captured one returns {returned:.4g} of {state:.4g} bytes of "
            "new state: the optimizer is another program, and the row stands under whole-step",
            {"launches": launches, "output_bytes": returned, "state_bytes": state},
        )


_ALIKE = {"gpu": {"cuda", "rocm"}, "cuda": {"gpu"}, "rocm": {"gpu", "cuda"}, "xla": {"cpu", "cuda", "tpu"}}


def _fallback(group: Group) -> Iterator[Hit]:
    # Under `auto` each stack chose by itself. Where one of them found an accelerator, there is one.
    found = next((row.platform for row in group.rows if on_gpu(row)), "cpu")
    for row in group.rows:
        wanted = row.cell.device if row.cell.device != "auto" else found
        for outputs in row.every("devices.outputs"):
            other = [d for d in outputs if d != wanted and wanted not in _ALIKE.get(d, ())]
            if other:
                yield Hit(
                    row,
                    f"outputs lie on {', '.join(sorted(other))}, the cell is {wanted}",
                    {"outputs": list(outputs), "device": wanted},
                    # A fallback that merely slows is a warning; another device is another machine.
                    severity="void",
                )
                break


RULES = (
    Rule(
        code="work-removed",
        alias="P9",
        family="computed",
        severity="void",
        title="Dead code was removed",
        what="The compiler dropped work whose result nobody reads: gradients that are not returned, an update "
        "that is not kept.",
        why="Gradients discarded under jit: 537 instead of 1,479 MFLOP, 1.30 instead of 4.35 ms.",
        evidence=("consumed",),
        detected="All outputs and the new state are returned and read after the window, and the captured program has "
        "at least 0.98 of the workload's closed-form FLOPs, without what a causal mask hides. Of rows that give no "
        "program away the operators of one step are counted by torch's dispatcher, where all of them are known.",
        fix="Return every gradient and the new state from the compiled function, and read them once at the end.",
        waive="Never.",
        example="loss, grads = value_and_grad(f)(w, x); return loss",
        cpu=True,
        check=each(_removed),
    ),
    Rule(
        code="steps-fused",
        alias="P52",
        family="computed",
        severity="void",
        title="Steps of a queue are computed together",
        what="A queue of steps that nobody waits for in between is run as fewer, larger programs than its steps.",
        why="Sixteen steps in one scan save fifteen dispatches, and a batch of sixteen batches is a faster product. "
        "The queue is the harness's: a loop that reads its loss, moves a learning rate or stops early has none of it. "
        "One that queues steps and runs each by itself is fair, as a lazy framework does.",
        evidence=("observed.queue",),
        detected="A queue as long as a sample's (512 steps at most) under the framework's own profiler or dispatcher: "
        "at least 0.7 executables, or compiled regions, for each step, or of eager rows 0.7 of the operators that as "
        "many single steps run. What fakes as many small programs is not told.",
        fix="Start each step when it is called; declare a workload of many steps where that is what is compared.",
        waive="Where the training loop itself runs many steps in one program: on every side, as a workload of its own.",
        example="jax.lax.scan(step, state, sixteen_batches)   # behind a `step` that only writes its batch down",
        cpu=True,
        check=each(_fused),
        applies=lambda row: any(s.steps > 1 for p in row.fine for s in p.evidence.samples),
    ),
    Rule(
        code="weights-baked-in",
        alias="P10",
        family="computed",
        severity="void",
        title="Weights captured as constants",
        what="Weights enter the program as constants, and what depends on them alone is folded at compile time.",
        why="Captured by closure, a network had no product left: 8,192 instead of 2.1 G FLOPs, 470 times as fast.",
        evidence=("weights.bytes", "program.constants_bytes|observed.frozen"),
        detected="Bytes of constants in the captured program (over 1 MB, or a tenth of the weights of a large model, "
        "or a quarter of those of a small one; 4 kB are always allowed), where not each of the weights, replaced by "
        "another, changes what a step says without a compilation (a table of positions is a constant, and no weight); "
        "and argument bytes that must cover parameters, buffers and moments; Inductor's switch for freezing, where "
        "torch gives no program away.",
        fix="Pass parameters as arguments of the compiled function; switch Inductor's freezing off.",
        waive="When deployment with frozen weights is the question: on every side, under a contract that says so.",
        example="@jax.jit\ndef step(x): return model(params, x)   # params from the closure",
        cpu=True,
        check=each(_baked),
        applies=lambda row: row.compiled != "none",
    ),
    Rule(
        code="stale-inputs",
        alias="P11",
        family="computed",
        severity="void",
        title="The same input or a replayed result in every step",
        what="Steps return what an earlier step computed, because the input never changes or the output is cached.",
        why="Kernels that replayed a stored result have been submitted to competitions; a constant input also lets "
        "caches and branch predictors learn it.",
        evidence=("rotation", "region.moved"),
        detected="At least four batches rotate; each must give its own loss at the same weights, and a training step "
        "must move the parameters. Where the reference itself has one loss for two batches (a head that begins as "
        "zeros), or nobody knows, they must be told apart by the losses behind 1, 3 or 8 steps, or by what a step "
        "returns.",
        fix="Feed a new batch to every step and pass the new state on to the next.",
        waive="Never.",
        example="y = graph.replay()   # without copying the new batch into the captured buffer",
        cpu=True,
        check=_stale,
    ),
    Rule(
        code="lazy-outputs",
        alias="P12",
        family="computed",
        severity="void",
        title="Lazy objects, deferred work",
        what="What a step returned was a promise: the work ran when it was read, outside of the clock, or it never "
        "ran and the values are not numbers.",
        why="Lazy tensors passed a correctness check and a clock, each at another time (reference-kernels 161).",
        evidence=("consumed",),
        detected="Every output is read back after the window and must be real, and finite where the reference is "
        "(logits of a class that is not allowed are minus infinity in both); clock-stops-early times the same read.",
        fix="Materialise outputs inside the window: synchronise on them.",
        waive="Never.",
        example="a torch.Tensor subclass whose __torch_dispatch__ computes on first use",
        cpu=True,
        check=each(_lazy),
    ),
    Rule(
        code="graph-break",
        alias="P13",
        family="computed",
        severity="warn",
        title="Graph breaks: compiled in pieces",
        what="The compiler gave up in the middle and the framework runs the gap eagerly.",
        why="Against one whole XLA program this compares two recipes; fullgraph=True was asked for to be fair to "
        "JAX (algorithmic-efficiency 487).",
        evidence=("observed.graph_breaks|observed.launches",),
        detected="Dynamo's own count of graph breaks must be 0; one watched step of an XLA stack must start one "
        "executable.",
        fix="fullgraph=True shows the line; take prints, .item() and data-dependent branches out of the step.",
        waive="When the model cannot be compiled whole and the row says so.",
        example="if loss.item() > 10: ...   # inside the compiled step",
        cpu=True,
        check=each(_breaks),
        applies=lambda row: row.compiled != "none",
    ),
    Rule(
        code="optimizer-outside",
        alias="P14",
        family="computed",
        severity="void",
        title="Loss or optimizer compiled on one side only",
        what="A row that stands under the whole-step recipe compiles less than the whole step.",
        why="The update of AdamW moves seven times the weights through memory; fused into the step or launched "
        "apart, it is a fifth of a small model's step (keras-benchmarks 1).",
        evidence=("observed",),
        detected="One step under the framework's profiler, against the recipe that the catalogue declares. torch: no "
        "operator that computes may run outside of the compiled regions, and none that changes as many elements as an "
        "update does. XLA: one executable, or a captured program that returns parameters and moments.",
        fix="Compile loss, backward and update together, or declare the recipe `out-of-the-box`.",
        waive="Under the contract out-of-the-box: torch-compile-model is that row.",
        example="loss = torch.compile(model)(x).loss; loss.backward(); optimizer.step()",
        cpu=True,
        check=each(_compiled_extent),
    ),
    Rule(
        code="silent-fallback",
        alias="P15",
        family="computed",
        severity="warn",
        title="A silent fallback",
        what="The framework ran elsewhere or otherwise than asked: on the CPU for want of a wheel, eagerly after "
        "too many recompilations.",
        why="jit_compile was ignored for months in one backend (keras 19815), and JAX without a CUDA wheel prints "
        "one line and runs on the CPU.",
        evidence=("devices",),
        detected="The platform of every output must be the cell's device; another device voids the row.",
        fix="Install the wheel for the device; `detente doctor` tells which platform each stack sees.",
        waive="Never for another device.",
        example="jax.devices() -> [CpuDevice(id=0)] on a machine with a GPU",
        cpu=False,
        check=_fallback,
    ),
)
