"""Truths about torch and about the process, each changed once. Run as ``of_torch.py PREPARED``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from detente.worker.process_state import take_state
from tests.worker.evidence.bench import Bench, Truth, tell

TRUTHS: dict[str, Truth] = {}


def truth(key: str) -> Callable[[Truth], Truth]:
    def keep(function: Truth) -> Truth:
        TRUTHS[key] = function
        return function

    return keep


def torch_of(b: Bench) -> Any:
    return b.opened().running.torch


@truth("modules")
def another_framework_is_imported(b: Bench) -> tuple[Any, Any]:
    fair = b.probe("modules")["modules"]["foreign"]
    sys.modules["tensorflow"] = types.ModuleType("tensorflow")
    changed = b.probe("modules")["modules"]["foreign"]
    del sys.modules["tensorflow"]
    return fair, changed


@truth("flags")
def a_compiler_is_tuned(b: Bench) -> tuple[Any, Any]:
    fair = b.probe("flags")["flags"]
    os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
    changed = b.probe("flags")["flags"]
    del os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"]
    return fair, changed


@truth("observed.flops")
def a_product_is_left_out(b: Bench) -> tuple[Any, Any]:
    def step(honest: Any, batch: Any) -> Any:
        with honest.torch.no_grad():
            return honest._loss(batch)

    fair = b.probe("observed")["observed"]
    changed = b.probe("observed", b.with_running(step=step))["observed"]
    assert fair["opaque"] == changed["opaque"] == [] and fair["queue"]["operators"] > 9 * fair["operators"]
    return fair["flops"], changed["flops"]


@truth("host.collector")
def a_step_turns_the_collector_on(b: Bench) -> tuple[Any, Any]:
    import gc

    def step(honest: Any, batch: Any) -> Any:
        gc.enable()
        return honest.step(batch)

    fair = b.probe("host")["host"]["collector"]
    return fair, b.probe("host", b.with_running(step=step))["host"]["collector"]


@truth("host.profiler_active")
def a_profiler_is_on(b: Bench) -> tuple[Any, Any]:
    fair = b.probe("host")["host"]["profiler_active"]
    sys.setprofile(lambda *_: None)
    changed = b.probe("host")["host"]["profiler_active"]
    sys.setprofile(None)
    return fair, changed


@truth("host.patched_timers")
def a_timer_is_replaced(b: Bench) -> tuple[Any, Any]:
    fair, real = b.probe("host")["host"]["patched_timers"], time.perf_counter_ns
    time.perf_counter_ns = lambda: real() // 2
    changed = b.probe("host")["host"]["patched_timers"]
    time.perf_counter_ns = real
    return fair, changed


@truth("threads.affinity")
def a_thread_may_run_elsewhere(b: Bench) -> tuple[Any, Any]:
    mine = os.sched_getaffinity(0)
    fair = b.probe("threads")["threads"]["affinity"]
    os.sched_setaffinity(0, {min(mine)} if len(mine) > 1 else range(os.cpu_count() or 1))
    changed = b.probe("threads")["threads"]["affinity"]
    os.sched_setaffinity(0, mine)
    return fair, changed


@truth("threads.declared")
def the_parent_names_other_cores(b: Bench) -> tuple[Any, Any]:
    fair = b.probe("threads")["threads"]["declared"]
    before = {**b.opened().environment["before"], "DETENTE_AFFINITY": "7,9"}
    named = replace(b.opened(), environment={**b.opened().environment, "before": before})
    return fair, b.probe("threads", named)["threads"]["declared"]


@truth("threads.framework")
def the_framework_has_more_threads(b: Bench) -> tuple[Any, Any]:
    torch = torch_of(b)
    fair = b.probe("threads")["threads"]["framework"]
    torch.set_num_threads(3)
    changed = b.probe("threads")["threads"]["framework"]
    torch.set_num_threads(1)
    return fair, changed


@truth("threads.busy")
def a_child_computes_while_this_process_sleeps(b: Bench) -> tuple[Any, Any]:
    """The window of an idle process, and of one whose child used half a second of a processor meanwhile."""

    def busy(work: Callable[[], None]) -> float:
        before = take_state()
        work()
        opened = replace(b.opened(), window=(before, take_state()))
        from detente.worker.probes.threads import probe

        return probe(opened, ())["threads"]["busy"]

    def child_burns() -> None:
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(600):
            time.sleep(0.05)
            with open(f"/proc/{child.pid}/stat", encoding="utf-8") as file:
                if int(file.read().rpartition(")")[2].split()[11]) >= 50:
                    break
        os.environ["MUSEUM_CHILD"] = str(child.pid)

    fair = busy(lambda: time.sleep(0.5))
    changed = busy(child_burns)
    os.kill(int(os.environ.pop("MUSEUM_CHILD")), 9)
    return fair, changed


@truth("threads.policies")
def the_scheduling_policy_changes(b: Bench) -> tuple[Any, Any]:
    fair = b.probe("threads")["threads"]["policies"]
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    changed = b.probe("threads")["threads"]["policies"]
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return fair, changed


@truth("threads.niceness")
def the_process_yields(b: Bench) -> tuple[Any, Any]:
    fair = b.probe("threads")["threads"]["niceness"]
    os.nice(1)
    return fair, b.probe("threads")["threads"]["niceness"]


def waiting(b: Bench, key: str) -> tuple[Any, Any]:
    """What is said of an honest wait, and of one that sleeps."""

    def synchronise(honest: Any, *handles: Any) -> None:
        time.sleep(0.0005)
        honest.synchronise(*handles)

    changed = b.with_running(synchronise=synchronise)
    return b.probe("waiting")["waiting"][key], b.probe("waiting", changed)["waiting"][key]


@truth("waiting.share")
def the_wait_sleeps(b: Bench) -> tuple[Any, Any]:
    return waiting(b, "share")


@truth("waiting.asleep")
def the_wait_sleeps_and_computes_nothing(b: Bench) -> tuple[Any, Any]:
    return waiting(b, "asleep")


def seen(b: Bench, step: Any) -> dict[str, Any]:
    return b.probe("observed", b.with_running(step=step))["observed"]


@truth("observed")
def the_loss_is_read_in_the_step(b: Bench) -> tuple[Any, Any]:
    def step(honest: Any, batch: Any) -> Any:
        handle = honest.step(batch)
        float(handle[0])
        return handle

    keys = ("reads", "loss_read")
    fair = b.probe("observed")["observed"]
    return [fair[k] for k in keys], [seen(b, step)[k] for k in keys]


@truth("observed of a forward")
def a_forward_reads_what_it_computed(b: Bench) -> tuple[Any, Any]:
    """Behind its last operator it is a read-back; a value that a model asks for on its way is the model's own."""

    def reads(step: Any) -> int:
        return b.probe("observed", b.with_running("forward", step=step))["observed"]["reads"]

    def on_its_way(honest: Any, batch: Any) -> Any:
        bool(next(iter(batch.values())).sum() > 0)
        return honest.step(batch)

    def at_the_end(honest: Any, batch: Any) -> Any:
        handle = honest.step(batch)
        float(handle[0])
        return handle

    fair = b.probe("observed", b.opened("forward"))["observed"]["reads"]
    return [fair, reads(on_its_way)], [fair, reads(at_the_end)]


@truth("observed.updated")
def the_optimizer_leaves_its_step(b: Bench) -> tuple[Any, Any]:
    def step(honest: Any, batch: Any) -> Any:
        return honest._loss(batch)[0].detach(), {}

    fair = b.probe("observed")["observed"]["updated"]
    return fair > 0, seen(b, step)["updated"] > 0


@truth("observed.graph_breaks")
def dynamo_gives_up_once(b: Bench) -> tuple[Any, Any]:
    torch = torch_of(b)
    fair = b.probe("observed")["observed"]

    def broken(x: Any) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        return x + 1

    compiled = torch.compile(broken, backend="eager")

    def step(honest: Any, batch: Any) -> Any:
        handle = honest.step(batch)
        return compiled(handle[0]), {}

    changed = seen(b, step)
    return [fair["graph_breaks"], fair["regions"]], [changed["graph_breaks"], changed["regions"]]


@truth("observed.eager_ops")
def operators_run_beside_a_compiled_region(b: Bench) -> tuple[Any, Any]:
    torch = torch_of(b)
    whole = torch.compile(lambda x: torch.sin(x) + 1, backend="eager")
    half = torch.compile(torch.sin, backend="eager")
    x = torch.ones(8)
    whole(x), half(x)
    fair = seen(b, lambda honest, batch: (whole(x)[0], {}))
    changed = seen(b, lambda honest, batch: ((half(x) + 1)[0], {}))
    return fair["eager_ops"], changed["eager_ops"]


@truth("observed.frozen")
def inductor_is_told_to_freeze(b: Bench) -> tuple[Any, Any]:
    from torch._inductor import config

    fair = b.probe("observed")["observed"]["frozen"]
    config.freezing = True
    changed = b.probe("observed")["observed"]["frozen"]
    config.freezing = False
    return fair, changed


@truth("observed.product_dtypes")
def a_product_is_rounded(b: Bench) -> tuple[Any, Any]:
    torch = torch_of(b)
    half = torch.ones(8, 8, dtype=torch.bfloat16)

    def step(honest: Any, batch: Any) -> Any:
        _ = half @ half
        return honest.step(batch)

    return sorted(b.probe("observed")["observed"]["product_dtypes"]), sorted(seen(b, step)["product_dtypes"])


@truth("observed.random_ops")
def a_step_drops(b: Bench) -> tuple[Any, Any]:
    torch = torch_of(b)

    def step(honest: Any, batch: Any) -> Any:
        torch.nn.functional.dropout(torch.ones(8), 0.5)
        return honest.step(batch)

    return b.probe("observed")["observed"]["random_ops"], seen(b, step)["random_ops"]


@truth("region.inside")
def the_optimizer_is_left_out(b: Bench) -> tuple[Any, Any]:
    def step(honest: Any, batch: Any) -> Any:
        return float(honest._loss(batch)[0]), {}

    changed = b.with_running(step=step)
    return b.probe("region")["region"]["inside"], b.probe("region", changed)["region"]["inside"]


@truth("region.inside of a batch on the host")
def a_batch_stays_on_the_host(b: Bench) -> tuple[Any, Any]:
    """Also where an object hides it that does not look like numpy."""
    fair = b.probe("region")["region"]["inside"]
    hidden = types.SimpleNamespace(kept=types.SimpleNamespace(arrays=b.opened().batches[0]))
    first = b.opened().placed[0]
    changed = b.with_running(step=lambda honest, batch: honest.step(first))
    changed = replace(changed, placed=[hidden])
    return fair, b.probe("region", changed)["region"]["inside"]


@truth("region.moved")
def no_parameter_moves(b: Bench) -> tuple[Any, Any]:
    def step(honest: Any, batch: Any) -> Any:
        return honest._loss(batch)[0].detach(), {}

    changed = b.with_running(step=step)
    return b.probe("region")["region"]["moved"] > 0, b.probe("region", changed)["region"]["moved"] > 0


@truth("region.state_bytes")
def another_optimizer_keeps_less(b: Bench) -> tuple[Any, Any]:
    sgd = b.opened("train-step-sgd")
    return b.probe("region")["region"]["state_bytes"], b.probe("region", sgd)["region"]["state_bytes"]


@truth("region.moving_bytes")
def a_part_that_is_frozen_moves_nothing(b: Bench) -> tuple[Any, Any]:
    fair = b.probe("region")["region"]
    changed = b.with_running(
        parameter_names=lambda honest: frozenset(), step=lambda honest, batch: honest._loss(batch)
    )
    return fair["moving_bytes"], b.probe("region", changed)["region"]["moving_bytes"]


@truth("rotation")
def every_step_sees_the_first_batch(b: Bench) -> tuple[Any, Any]:
    first = b.opened().placed[0]
    changed = b.with_running(step=lambda honest, batch: honest.step(first))
    losses = [b.probe("rotation", o)["rotation"]["losses"] for o in (b.opened(), changed)]
    return len(set(losses[0])), len(set(losses[1]))


@truth("repeat")
def the_same_step_wanders(b: Bench) -> tuple[Any, Any]:
    calls = iter(range(1, 99))

    def step(honest: Any, batch: Any) -> Any:
        loss, rest = honest.step(batch)
        return loss * (1 + 1e-3 * next(calls)), rest

    changed = b.with_running(step=step)
    return b.probe("rotation")["repeat"]["max_rel"], b.probe("rotation", changed)["repeat"]["max_rel"]


@truth("slope")
def nothing_is_done_until_it_is_read(b: Bench) -> tuple[Any, Any]:
    """How many times as long k steps take when they are read, over when they are waited for."""

    def step(honest: Any, batch: Any) -> Any:
        return {"batch": batch}

    def loss(honest: Any, handle: Any) -> float:
        if "done" not in handle:
            handle["done"] = [honest.step(handle["batch"]) for _ in range(4)][-1]
        return honest.loss(handle["done"])

    changed = b.with_running(step=step, loss=loss, synchronise=lambda honest, *handles: None)
    gaps = []
    for opened in (b.opened(), changed):
        slope = b.probe("slope", opened)["slope"]
        gaps.append(slope["read_t_k"] < 3 * slope["t_k"])
    return gaps[0], gaps[1]


@truth("precision")
def products_are_rounded(b: Bench) -> tuple[Any, Any]:
    stack, torch = b.opened().stack, torch_of(b)
    fair = b.probe("precision")["precision"]["class"]
    stack.compute = torch.bfloat16
    changed = b.probe("precision")["precision"]["class"]
    stack.compute = torch.float32
    return fair, changed


@truth("precision.denormals")
def denormals_are_flushed(b: Bench) -> tuple[Any, Any]:
    torch = torch_of(b)
    fair = b.probe("precision")["precision"]["denormals"]
    torch.set_flush_denormal(True)
    changed = b.probe("precision")["precision"]["denormals"]
    torch.set_flush_denormal(False)
    return fair, changed


@truth("consumed")
def an_output_is_no_number(b: Bench) -> tuple[Any, Any]:
    def step(honest: Any, batch: Any) -> Any:
        loss, rest = honest.step(batch)
        return loss, {n: t / 0 * 0 for n, t in rest.items()}

    changed = b.with_running("forward", step=step)
    found = [b.probe("consumed", o)["consumed"] for o in (b.opened("forward"), changed)]
    return found[0]["finite"], found[1]["finite"]


@truth("devices")
def an_output_lies_elsewhere(b: Bench) -> tuple[Any, Any]:
    honest = b.opened()
    loss, rest = honest.done
    changed = replace(honest, done=(loss.to("meta"), rest))
    return b.probe("devices")["devices"]["outputs"], b.probe("devices", changed)["devices"]["outputs"]


@truth("weights")
def one_tensor_is_off(b: Bench) -> tuple[Any, Any]:
    def load(honest: Any, tensors: Any) -> None:
        last = sorted(tensors)[-1]
        honest.load({n: a + 1 if n == last else a for n, a in tensors.items()})

    changed = b.probe("weights", b.with_running(load=load))["weights"]
    fair = b.probe("weights")["weights"]
    return fair["hash"] == fair["reference_hash"], changed["hash"] == changed["reference_hash"]


@truth("weights.bytes")
def a_tie_is_dropped(b: Bench) -> tuple[Any, Any]:
    def state(honest: Any) -> Any:
        held = honest.state()
        return {**held, "another copy": next(iter(held.values()))}

    changed = b.probe("weights", b.with_running(state=state))["weights"]
    fair = b.probe("weights")["weights"]
    return [fair["bytes"], fair["count"]], [changed["bytes"], changed["count"]]


if __name__ == "__main__":
    tell("torch-eager", sys.argv[1], TRUTHS)
