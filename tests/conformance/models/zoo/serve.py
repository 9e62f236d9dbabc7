"""Each architecture in its own process, forked from one that has imported everything and computed nothing.

A fork is safe only while there is one thread and no XLA backend, so the parent never runs JAX. A child that
is too long or dies is a crash of that architecture, not of the run.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import traceback
from typing import Any

from tests import quick_xla
from zoo.architectures import Architecture

LIMIT_SECONDS = 300  # of processor time: the machine may be busy
LIMIT_WAITING = 1800.0  # of the clock, for a child that waits for ever
LIMIT_BYTES = 12 * 2**30


def prepare() -> None:
    """Import what every child needs."""
    os.environ.setdefault("XLA_FLAGS", quick_xla.FLAGS)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["DETENTE_BRIDGE_CACHE"] = "off"
    import torch
    import tqdm
    import transformers

    import detente.bridge.doors.entry  # noqa: F401
    from detente.bridge.capture.export import capture
    from detente.bridge.lower.driver import load_table

    load_table()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    tqdm.tqdm.monitor_interval = 0  # its monitor is a thread
    # one export of a small transformer, for what torch and transformers import only when they are used
    small = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(small)
    capture(
        model,
        lambda m, b: m(**b).loss,
        {"input_ids": torch.ones(2, 4, dtype=int), "labels": torch.ones(2, 4, dtype=int)},
    )
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
    if threads != 1:
        raise RuntimeError(
            f"{threads} threads before the first fork: a child could wait for one that it lacks"
        )


def run(architecture: Architecture) -> dict[str, Any]:
    """The record of one architecture, whatever happens to its process."""
    told, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        _child(architecture, say)
    os.close(say)
    text, late = _read(told, LIMIT_WAITING)
    os.close(told)
    if late:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if text and not late:
        return json.loads(text)
    reason = f"the process died with status {status}"
    if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        reason = f"stuck for {LIMIT_WAITING if late else LIMIT_SECONDS:.0f} s"
    return {
        "name": architecture.name, "model_type": architecture.model_type, "task": architecture.task.name,
        "outcome": "crashed", "detail": reason,
    }  # fmt: skip


def _child(architecture: Architecture, say: int) -> None:
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS + 10))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    if not os.environ.get("ZOO_VERBOSE"):
        os.dup2(null, 2)
    try:
        from zoo.attempt import attempt

        record = attempt(architecture)
    except BaseException:
        record = {
            "name": architecture.name, "model_type": architecture.model_type, "task": architecture.task.name,
            "outcome": "crashed", "detail": "in the harness: " + traceback.format_exc()[-1500:],
        }  # fmt: skip
    with os.fdopen(say, "w") as out:
        json.dump(record, out)
    sys.stdout.flush()
    os._exit(0)


def _read(told: int, seconds: float) -> tuple[str, bool]:
    from time import monotonic

    parts: list[bytes] = []
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        ready, _, _ = select.select([told], [], [], left)
        if ready:
            part = os.read(told, 65536)
            if not part:
                return b"".join(parts).decode(), False
            parts.append(part)
    return "", True
