"""Each architecture in its own process (``tests.forked``); the parent has imported what every child needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests import forked, quick_xla
from zoo.architectures import Architecture


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
    from detente.bridge.capture.capture import capture
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


def each(architectures: Sequence[Architecture], jobs: int) -> Iterator[tuple[Architecture, dict[str, Any]]]:
    """(architecture, its record) as they end, ``jobs`` at a time, whatever happens to a process."""
    works = [_work(architecture) for architecture in architectures]
    for number, record in forked.each(works, jobs, quiet=not os.environ.get("ZOO_VERBOSE")):
        found = architectures[number]
        known = {"name": found.name, "model_type": found.model_type, "task": found.task.name}
        yield found, known | record


def _work(architecture: Architecture) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        from zoo.attempt import attempt

        return attempt(architecture)

    return work
