"""A batch of two examples from a model's forward signature and its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from zoo.architectures import Task
from zoo.shrink import VOCABULARY, Size, _parts

BATCH = 2
PADDED = 3  # positions of the second text that are padding


def batches(model: Any, task: Task, size: Size) -> Iterator[dict[str, torch.Tensor]]:
    """Batches to try, the likeliest first: the main input in each of its layouts, labels and a mask."""
    names = inspect.signature(model.forward).parameters
    main = model.main_input_name if model.main_input_name in names else next(iter(names))
    generator = torch.Generator().manual_seed(0)
    for value in _main(main, model.config, size, generator):
        batch = {main: value}
        if main == "input_ids" and "attention_mask" in names:
            batch["attention_mask"] = torch.ones_like(value)
            batch["attention_mask"][1, -PADDED:] = 0
        if "bbox" in names:
            corner = torch.randint(0, 50, (*value.shape, 2), generator=generator)
            batch["bbox"] = torch.cat([corner, corner + 20], -1)
        if "labels" in names:
            batch["labels"] = _labels(task, model.config, value if main == "input_ids" else None, generator)
            if "attention_mask" in batch and task.labels != "example":
                batch["labels"] = batch["labels"].masked_fill(batch["attention_mask"] == 0, -100)
        elif "decoder_input_ids" in names:
            batch["decoder_input_ids"] = _text(model.config, size.length, generator)
        yield batch


def _main(name: str, config: Any, size: Size, generator: torch.Generator) -> Iterator[torch.Tensor]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(BATCH, *shape, generator=generator)

    if name == "input_ids":
        yield _text(config, size.length, generator)
    elif name.startswith("pixel_values"):
        height, width = _image(config, size)
        yield normal(_find(config, "num_channels", "in_channels", "in_chans", default=3), height, width)
    elif name == "input_features":
        bins = _find(
            config, "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", default=80
        )
        frames = 2 * _find(config, "max_source_positions", default=64)
        yield normal(bins, frames)
        yield normal(64, bins)
    elif name == "input_values":
        bins = _find(config, "num_mel_bins", default=0)
        if bins:
            yield normal(_find(config, "max_length", default=64), bins)
        yield normal(4000)
        yield normal(1, 4000)
    else:
        yield normal(size.length)


def _text(config: Any, length: int, generator: torch.Generator) -> torch.Tensor:
    """Token ids that are no special token; the last of each row ends the sequence."""
    special = {
        v for p in _parts(config) for k, v in p.__dict__.items() if k.endswith("token_id") and _whole(v)
    }
    vocabulary = min(_find(config, "vocab_size", default=VOCABULARY), VOCABULARY)
    plain = torch.tensor([i for i in range(vocabulary) if i not in special])
    ids = plain[torch.randint(0, len(plain), (BATCH, length), generator=generator)]
    end = _find(config, "eos_token_id", default=-1)
    if 0 <= end < vocabulary:
        ids[:, -1] = end
    return ids


def _labels(task: Task, config: Any, ids: torch.Tensor | None, generator: torch.Generator) -> torch.Tensor:
    if task.labels == "tokens":
        return ids.clone() if ids is not None else _text(config, 8, generator)
    shape = (BATCH,) if task.labels == "example" or ids is None else tuple(ids.shape)
    return torch.randint(0, config.num_labels, shape, generator=generator)


def _image(config: Any, size: Size) -> tuple[int, int]:
    for part in _parts(config):
        value = part.__dict__.get("image_size") or part.__dict__.get("input_size")
        if isinstance(value, dict):
            value = [value.get("height", 64), value.get("width", 64)]
        if isinstance(value, list | tuple) and len(value) >= 2:
            return int(value[-2]), int(value[-1])
        if _whole(value) and value > 0:
            return int(value), int(value)
    return (size.image or 224,) * 2


def _find(config: Any, *names: str, default: int) -> int:
    for part in _parts(config):
        for name in names:
            value = getattr(part, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if _whole(value):
                return value
    return default


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
