"""The generated list: one entry per model class of the auto mappings, no name removed by hand."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """An auto mapping. ``labels``: ``tokens`` are vocabulary ids per position, ``positions`` class ids per
    position, ``example`` one class id per example."""

    name: str
    mapping: str
    labels: str


TASKS = (
    Task("causal", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "tokens"),
    Task("masked", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "tokens"),
    Task("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "tokens"),
    Task("speech seq2seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "tokens"),
    Task("image classification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "example"),
    Task("audio classification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", "example"),
    Task("sequence classification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "example"),
    Task("token classification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "positions"),
)


@dataclass(frozen=True)
class Architecture:
    """A model class, the configuration that the mapping pairs it with, and the first task that lists it."""

    name: str
    model_type: str
    task: Task


def architectures() -> tuple[Architecture, ...]:
    """Every class once, in a fixed order: one class of every model type, then the second of each, and so on, so that
    an interrupted run has seen as many families as it could. Among equals the order is by hash: it mixes the tasks."""
    from transformers.models.auto import modeling_auto

    found: dict[str, Architecture] = {}
    for task in TASKS:
        for model_type, names in getattr(modeling_auto, task.mapping).items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, Architecture(name, model_type, task))
    mixed = sorted(found.values(), key=lambda a: hashlib.sha256(a.name.encode()).hexdigest())
    seen: Counter[str] = Counter()
    ranked = []
    for architecture in mixed:
        ranked.append((seen[architecture.model_type], len(ranked), architecture))
        seen[architecture.model_type] += 1
    return tuple(architecture for _, _, architecture in sorted(ranked, key=lambda row: row[:2]))
