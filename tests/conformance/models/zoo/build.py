"""The first shrink of an architecture that builds under 30 M parameters and trains in eager torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn

from zoo.architectures import Architecture
from zoo.inputs import batches
from zoo.shrink import SIZES, Size, shrink

PARAMETERS = 30_000_000
SECONDS = 40.0
SEED = 7


class Unbuilt(Exception):
    """No shrink builds and trains in eager torch: the architecture is outside the run, with the reason."""


@dataclass
class Built:
    model: nn.Module
    batch: dict[str, torch.Tensor]
    size: Size
    parameters: int
    eager_seconds: float


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The model's own loss; without one, the mean square of every floating result."""
    out = model(**batch)
    value = getattr(out, "loss", None)
    if value is not None and value.numel() == 1:
        return value.reshape(())
    results = out.values() if hasattr(out, "values") else out if isinstance(out, tuple) else (out,)
    floats = [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point()]
    return sum((r.float().square().mean() for r in floats), torch.zeros(()))


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def build(architecture: Architecture) -> Built:
    """Raises Unbuilt with the first three reasons."""
    import transformers

    try:
        kind = getattr(transformers, architecture.name)
        configuration = transformers.CONFIG_MAPPING[architecture.model_type]
    except Exception as error:
        raise Unbuilt(_said(error)) from error
    failures: list[str] = []
    for size in SIZES:
        start = perf_counter()
        try:
            return _at(kind, configuration, architecture, size, start)
        except Unbuilt as unbuilt:
            failures.append(f"/{size.divide}: {unbuilt}")
        except Exception as error:
            failures.append(f"/{size.divide}: {_said(error)}")
    reasons = {failure.partition(": ")[2]: failure for failure in reversed(failures)}
    raise Unbuilt(" | ".join(reversed(list(reasons.values())[-3:])))


def _at(kind: Any, configuration: Any, architecture: Architecture, size: Size, start: float) -> Built:
    config = configuration()
    if kind.config_class is not type(config):  # AutoModel does the same for the text part of a larger model
        config = config.get_text_config()
    config = shrink(config, size)
    with torch.device("meta"):
        count = _count(kind(copy.deepcopy(config)))
    if count > PARAMETERS:
        raise Unbuilt(f"{count:,} parameters")
    torch.manual_seed(SEED)
    model = kind(config)
    _enliven(model)
    model.train()
    failure: Exception | None = None
    for batch in batches(model, architecture.task, size):
        try:
            trial = copy.deepcopy(model)
            begin = perf_counter()
            value = loss(trial, copy.deepcopy(batch))
            value.backward()
            optimizer(trial).step()
            seconds = perf_counter() - begin
            if not bool(torch.isfinite(value)):
                raise Unbuilt(f"eager torch's loss is {float(value)}")
            if perf_counter() - start > SECONDS:
                raise Unbuilt(f"eager torch took {seconds:.0f} s")
            return Built(model, batch, size, count, seconds)
        except Exception as error:
            failure = error
    raise failure or Unbuilt("no batch")


def _enliven(model: nn.Module) -> None:
    """Draw the matrices that are zero everywhere. A router of zeros ties all experts, and torch does not say which of
    equal values ``topk`` takes; behind a gate of zeros nothing would be compared."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.is_floating_point() and not parameter.any():
                parameter.normal_(std=0.02)


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _said(error: BaseException) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()[:160]}"
