"""Where the outputs of a step really are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``devices``. ``outputs`` are platforms of the arrays in the handle, asked of the arrays themselves, in the
    framework's words where it has none of ours; ``platform`` is what the stack started on."""
    kinds = {_ours(kind, opened.platform) for kind in _platforms(opened.done)}
    return {"devices": {"outputs": sorted(kinds), "platform": opened.platform}}


def _platforms(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _platforms(one)
    elif callable(getattr(value, "devices", None)):  # jax.Array
        yield from (device.platform for device in value.devices())
    elif hasattr(getattr(value, "device", None), "type"):  # torch.Tensor
        yield value.device.type


def _ours(kind: str, platform: str) -> str:
    """A GPU is ``gpu`` to JAX and ``cuda`` to torch, whoever made it, and a lazy tensor is on ``xla`` whatever that is
    here: there the stack's own platform is the finer word. A lazy tensor's host is a host."""
    return platform if kind != "cpu" and platform != "cpu" else "cpu" if kind == "xla" else kind
