"""The records: what is run, what was observed, and a case that joins both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Loss = Callable[[Any, Any], Any]
Optimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


def value_of(model: Any, batch: Any) -> Any:
    """The loss of most cases: the model returns it, alone or with what else is to be looked at."""
    return model(batch)


@dataclass(frozen=True)
class Run:
    """One training run. ``model`` makes a fresh module with seeded weights; a batch is one step. The subject sets
    torch's seed to ``seed`` after the module is made and before anything is compiled."""

    model: Callable[[], nn.Module]
    batches: Callable[[], Sequence[Any]]
    seed: int = 0


@dataclass(frozen=True)
class Moment:
    """What one step computed: CPU tensors. A gradient is None where torch leaves ``.grad`` None. ``buffers`` are
    those after the step."""

    loss: torch.Tensor
    aux: tuple[torch.Tensor, ...]
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Observed:
    """A run as it was seen: the steps that gave a loss that could be read, and the error that ended it (``"IndexError:
    ..."``, empty for none). ``parameters`` are those after the last step, where the case has an optimizer. ``program``
    is the text of the gradient's program, where the case asks for it."""

    moments: tuple[Moment, ...] = ()
    error: str = ""
    parameters: dict[str, torch.Tensor] | None = None
    program: str = ""


# what is wrong with the second list when the first is torch's; empty when nothing is
Judge = Callable[[Sequence[Observed], Sequence[Observed]], str]


@dataclass(frozen=True)
class Case:
    """``source`` says where the case comes from: ``4.2`` and ``4.4`` are sections of the research notes, ``list`` is
    the list in the issue. ``refusable``: torch runs it and no program with static shapes can, so a clear error is an
    answer, too. ``torch`` is one line about what torch does, for the table. ``program``: the judge reads
    ``Observed.program``."""

    name: str
    group: str
    source: str
    torch: str
    runs: tuple[Run, ...]
    judge: Judge
    loss: Loss = value_of
    optimizer: Optimizer | None = None
    refusable: bool = False
    program: bool = False


def error_of(error: BaseException) -> str:
    """An exception in one line: its first, and the next one where the first announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {text}"[:300]
