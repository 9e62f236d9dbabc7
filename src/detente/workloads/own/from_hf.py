"""Load ``hf:NAME``: a model of ``transformers`` from a checkpoint folder, a config.json or the name of a model type.

Nothing is downloaded: a name of the Hub works when its files are already in the local cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from detente.records.fault import UsageFault
from detente.workloads.own.loaded import Loaded
from detente.workloads.own.size import OwnSize
from detente.workloads.own.spec import CUT
from detente.workloads.torch_parts.at_least_float32 import shifted_cross_entropy

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class Task:
    """What a model is trained for.

    mapping   transformers' table from configuration to model, by name
    auto      the class that makes such a model, by name
    draw      (configuration, batch, sequence) -> a function without arguments that draws one batch
    """

    name: str
    mapping: str
    auto: str
    draw: Callable[[Any, int, int], Callable[[], dict[str, torch.Tensor]]]


def _tokens(config: Any, batch: int, sequence: int) -> Callable[[], dict[str, torch.Tensor]]:
    """``input_ids`` and ``labels`` (batch, sequence), the same random tokens."""
    vocabulary = config.get_text_config().vocab_size

    def draw() -> dict[str, torch.Tensor]:
        ids = torch.randint(0, vocabulary, (batch, sequence))
        return {"input_ids": ids, "labels": ids.clone()}

    return draw


def _classified_tokens(config: Any, batch: int, sequence: int) -> Callable[[], dict[str, torch.Tensor]]:
    tokens = _tokens(config, batch, sequence)
    return lambda: {
        "input_ids": tokens()["input_ids"],
        "labels": torch.randint(0, config.num_labels, (batch,)),
    }


def _pictures(config: Any, batch: int, sequence: int) -> Callable[[], dict[str, torch.Tensor]]:
    extent = getattr(config, "image_size", None) or 224
    height, width = (extent, extent) if isinstance(extent, int) else extent
    shape = (batch, getattr(config, "num_channels", 3), height, width)
    return lambda: {
        "pixel_values": torch.randn(shape),
        "labels": torch.randint(0, config.num_labels, (batch,)),
    }


# In the order of preference where a configuration fits several: BERT can also be trained as a causal model.
TASKS = (
    Task("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "AutoModelForSeq2SeqLM", _tokens),
    Task("masked", "MODEL_FOR_MASKED_LM_MAPPING", "AutoModelForMaskedLM", _tokens),
    Task("causal", "MODEL_FOR_CAUSAL_LM_MAPPING", "AutoModelForCausalLM", _tokens),
    Task(
        "pictures",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
        "AutoModelForImageClassification",
        _pictures,
    ),
    Task(
        "texts",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
        "AutoModelForSequenceClassification",
        _classified_tokens,
    ),
)


def load_hf(size: OwnSize) -> Loaded:
    """The model with every dropout of its configuration set to 0: random masks differ between frameworks, and no
    two of them could be proved equal. A folder with weights is read by ``from_pretrained``; else the weights are
    transformers' own random initialisation.

    Raises UsageFault when there is no such configuration, or none of TASKS fits it.
    """
    name = size.functions["torch"].removeprefix("hf:").partition("?")[0]
    config = _configure(name, dict(size.settings))
    if size.name.partition(",")[0] == CUT:
        _cut(config)
    task = find_task(config)
    auto = getattr(transformers, task.auto)
    folder = Path(name).expanduser()
    if _has_weights(folder):
        try:
            model = auto.from_pretrained(folder, config=config, dtype=torch.float32, local_files_only=True)
        except Exception as error:  # each library of files has its own
            raise UsageFault(
                f"the checkpoint in {folder} cannot be read: {type(error).__name__}: {str(error).splitlines()[0]}",
                "copy or download its files again; without any weights there, random ones are drawn",
            ) from error
    else:
        model = auto.from_config(config, dtype=torch.float32)
    if task.name == "causal" and getattr(model, "loss_type", None) in (None, "ForCausalLM"):
        # The same loss without transformers' cut to float32, which the proof in float64 could not survive.
        model.loss_function = shifted_cross_entropy
    return Loaded(model, loss, task.draw(config, size["batch"], size["sequence"]))


def loss(
    module: torch.nn.Module, batch: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The model's own loss for its labels, and its logits."""
    found = module(**batch)
    return found.loss, {"logits": found.logits}


def find_task(config: Any) -> Task:
    """The task that the checkpoint was saved for; else the first of TASKS that fits. Raises UsageFault for none."""
    fitting = {t: getattr(transformers, t.mapping) for t in TASKS}
    fitting = {t: m[type(config)] for t, m in fitting.items() if type(config) in m}
    named = set(config.architectures or ())
    for task, model in fitting.items():
        models = model if isinstance(model, tuple) else (model,)
        if named & {m.__name__ for m in models}:
            return task
    for task in fitting:
        if task.name != "seq2seq" or config.is_encoder_decoder:
            return task
    raise UsageFault(
        f"{config.model_type} has no model with a loss that detente can feed",
        f"tasks are {', '.join(t.name for t in TASKS)}; for others write path/to/file.py:function",
    )


def _configure(name: str, settings: dict[str, Any]) -> Any:
    config = _read(name, {})
    for key in settings:
        if not hasattr(config, key):
            raise UsageFault(
                f"{type(config).__name__} has no setting {key!r}",
                f"it has {', '.join(sorted(k for k in config.to_dict() if not k.startswith('_')))}",
            )
    if settings:
        # Made anew rather than set afterwards: what a configuration derives (llama's key heads) must follow.
        config = _read(name, settings)
    _without_dropout(config)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        # A checkpoint's configuration names it, a bare model type's may not; T5's decoder starts with padding.
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return config


# How configurations call their numbers of layers.
_LAYERS = ("num_hidden_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def _cut(config: Any) -> None:
    """At most two layers of every kind that a configuration names, and of none two layers of each stack."""
    for part in (config, *(v for v in vars(config).values() if isinstance(v, transformers.PretrainedConfig))):
        kinds = getattr(part, "layer_types", None)
        kept = [k for k in dict.fromkeys(kinds) for _ in range(min(2, list(kinds).count(k)))] if kinds else []
        for name in _LAYERS:
            if isinstance(getattr(part, name, None), int) and getattr(part, name) > 2:
                setattr(part, name, len(kept) or 2)
        if kept:
            part.layer_types = kept


def _read(name: str, settings: dict[str, Any]) -> Any:
    path = Path(name).expanduser()
    if not path.exists() and name in transformers.CONFIG_MAPPING:
        return transformers.AutoConfig.for_model(name, **settings)
    source = path if path.exists() else name
    try:
        return transformers.AutoConfig.from_pretrained(source, local_files_only=True, **settings)
    except (OSError, ValueError) as error:
        raise UsageFault(
            f"{name!r} is no model type of transformers {transformers.__version__}, and there is no configuration of "
            f"that name here ({str(error).splitlines()[0]})",
            "use a model type such as hf:gpt2, a folder with config.json, or download the checkpoint first",
        ) from None


def _without_dropout(config: Any) -> None:
    for key, value in vars(config).items():
        if isinstance(value, transformers.PretrainedConfig):
            _without_dropout(value)
        elif "drop" in key and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, key, 0.0)


def _has_weights(folder: Path) -> bool:
    """Whether there is a checkpoint, and not a configuration alone. Raises UsageFault for an index whose files are not
    all there: random weights in their place would be another model."""
    if not folder.is_dir():
        return False
    for index in sorted(folder.glob("*.index.json")):
        try:
            named = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise UsageFault(f"{index} is no index of a checkpoint: {error}", "download it again") from None
        missing = sorted(n for n in named if not (folder / n).is_file())
        if missing:
            raise UsageFault(
                f"{len(missing)} of the {len(named)} files of the checkpoint in {folder} are not there: "
                + ", ".join(missing[:3])
                + (", ..." if len(missing) > 3 else ""),
                "download them too, or name config.json itself for random weights",
            )
    return any(next(folder.glob(pattern), None) for pattern in _WEIGHTS)
