"""One mechanical rule that makes any configuration small, by the names and types of its attributes.

Widths are *divided* by one number, all alike, so that whatever ties them together (heads times head size, a
rotary part and the rest, a pyramid of channels) still holds; counts are *capped*. Which divisor holds is found
by trying: see ``SIZES``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VOCABULARY = 128


@dataclass(frozen=True)
class Size:
    """One row of the search: what widths are divided by, the image's edge (None: the configuration's own),
    the length of a text, the number of layers."""

    divide: int
    image: int | None = 64
    length: int = 16
    depth: int = 2


# tried in this order; the first that builds and trains in eager torch is the architecture's
SIZES = (
    Size(16),
    Size(8),
    Size(4),
    Size(8, image=None),
    Size(8, length=64),
    Size(8, depth=6),
    Size(16, depth=12),
    Size(2),
    Size(1),
    Size(2, image=None),
    Size(1, image=None, length=64),
    Size(32),
    Size(64),
)


@dataclass(frozen=True)
class Rule:
    """``names`` matches the attribute; ``new(value, size)`` gives a number's new value."""

    names: re.Pattern[str]
    new: Callable[[int, Size], int]


def _cap(limit: int) -> Callable[[int, Size], int]:
    return lambda value, size: min(value, limit)


def _divided(value: int, size: Size) -> int:
    return max(1, value // size.divide) if value >= 8 else value


# the first row that matches decides; a number that no row matches stays
RULES = (
    Rule(re.compile(r"token_ids?$|token_index$|_idx$"), lambda value, size: value % VOCABULARY),
    Rule(re.compile(r"(?<!type_)vocab_size|^n_words$|vocab_sizes?$"), _cap(VOCABULARY)),
    Rule(re.compile(r"position"), _cap(128)),
    Rule(re.compile(r"window"), _cap(16)),
    Rule(re.compile(r"experts$"), _cap(16)),
    Rule(re.compile(r"dense_replace$"), _cap(1)),
    Rule(
        re.compile(r"image_size|img_size|input_size$"),
        lambda value, size: value if size.image is None else min(value, size.image),
    ),
    Rule(
        re.compile(
            r"^(num_|n_)?((text_|encoder_|decoder_|hidden_|transformer_)*(layers?|blocks|hidden_groups))$"
            r"|^(depths?|n_layers?|num_hidden_layers|\w*depths?)$"
        ),
        lambda value, size: min(value, size.depth),
    ),
    Rule(
        re.compile(r"^num_|^n_(?!embd|inner)|type|kernel|stride|dilation|pad|factor$|groups?$"),
        lambda v, s: v,
    ),
    Rule(
        re.compile(
            r"hidden_size|hidden_dim|embed|embd|intermediate|inner|d_model|d_ff|d_kv|ffn|feedforward|"
            r"(^|_)dims?($|_)|rank|channels|width|units|mrope_section|filters?$"
        ),
        _divided,
    ),
)

# special tokens that every checkpoint has
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

# probabilities of what Python decides at random in forward (numpy's generator, a skipped layer)
OFF = re.compile(r"layerdrop|mask_(time|feature)_prob|layer_drop")


def shrink(config: Any, size: Size) -> Any:
    """Change ``config`` (a default-constructed configuration) in place by the rule; returns it."""
    _shrink(config.__dict__, size, _depth(config, size), set())
    for part in _parts(config):
        _fill(part)
    return config


def _fill(part: Any) -> None:
    """What a default configuration may leave open and a checkpoint's own always says."""
    values = part.__dict__
    heads = next((values[n] for n in ("num_attention_heads", "n_head", "num_heads") if n in values), None)
    if values.get("num_key_value_heads", 0) is None:
        values["num_key_value_heads"] = heads
    if values.get("head_dim", 0) is None and isinstance(heads, int) and "hidden_size" in values:
        values["head_dim"] = values["hidden_size"] // heads
    for name, number in SPECIAL.items():
        if values.get(name) is None:
            values[name] = number
    if values.get("is_encoder_decoder") and values.get("decoder_start_token_id") is None:
        values["decoder_start_token_id"] = values["pad_token_id"]
    if values.get("layer_types", 0) is None and "num_hidden_layers" in values:
        values["layer_types"] = ["full_attention"] * values["num_hidden_layers"]


def _parts(config: Any) -> list[Any]:
    from transformers import PreTrainedConfig

    parts = [config]
    for value in list(config.__dict__.values()):
        if isinstance(value, PreTrainedConfig):
            parts += _parts(value)
    return parts


def _depth(config: Any, size: Size) -> dict[int, int]:
    """Old depth -> new depth, so that a list with a row per layer keeps one of every kind of layer."""
    depths: dict[int, int] = {}
    for part in _parts(config):
        kinds = part.__dict__.get("layer_types") or part.__dict__.get("layers_block_type")
        if isinstance(kinds, list | tuple) and kinds:
            first = {kind: kinds.index(kind) for kind in kinds}
            depths[len(kinds)] = min(max(size.depth, max(first.values()) + 1), 12)
    return depths


def _shrink(values: dict[str, Any], size: Size, depths: dict[int, int], seen: set[int]) -> None:
    from transformers import PreTrainedConfig

    for name, value in list(values.items()):
        if isinstance(value, PreTrainedConfig):
            if id(value) not in seen:
                seen.add(id(value))
                _shrink(value.__dict__, size, depths | _depth(value, size), seen)
        elif isinstance(value, dict) and name not in ("id2label", "label2id"):
            if all(isinstance(key, str) for key in value):
                _shrink(value, size, depths, seen)
        elif OFF.search(name) and isinstance(value, int | float):
            values[name] = type(value)(0)
        elif name == "apply_spec_augment":
            values[name] = False
        elif name == "problem_type":  # what transformers itself writes here on the first forward
            values[name] = "single_label_classification"
        elif isinstance(value, list | tuple) and len(value) in depths and len(value) > 4:
            values[name] = type(value)(value[: depths[len(value)]])
        else:
            values[name] = _number(name, value, size, depths)


def _number(name: str, value: Any, size: Size, depths: dict[int, int]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_number(name, item, size, depths) for item in value)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value in depths and "layers" in name:
        return depths[value]
    rule = next((rule for rule in RULES if rule.names.search(name)), None)
    return value if rule is None else rule.new(value, size)
