"""Switch a torch model's dropout off, and tell where it is on: no two frameworks draw the same masks, so what drops out
cannot be proved equal."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def dropping(module: torch.nn.Module) -> dict[str, float]:
    """Name -> rate of what drops out in training: of dropout modules, and of numbers of modules that are called so
    (``MultiheadAttention.dropout``, ``LSTM.dropout``, a rate that ``forward`` gives to a function)."""
    return {f"{name}.{key}".lstrip("."): rate for name, _, key, rate in _rates(module)}


def switch_off(module: torch.nn.Module) -> None:
    """Every such rate becomes 0."""
    for _, part, key, _ in list(_rates(module)):
        setattr(part, key, 0.0)


def _rates(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, float]]:
    for name, part in module.named_modules():
        of_torch = isinstance(part, torch.nn.modules.dropout._DropoutNd)
        for key, value in vars(part).items():
            called_so = "drop" in key.lower() or (of_torch and key == "p")
            if called_so and type(value) in (int, float) and 0 < value <= 1:
                yield name, part, key, float(value)
