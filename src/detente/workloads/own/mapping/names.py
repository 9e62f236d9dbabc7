"""What the name of a weight says: its role, the module that it belongs to, and that module's words and numbers.

Two people write one model twice, and call things ``self_attn.q_proj.weight`` and ``attention.query.kernel``. Names are
read as words; words that mean the same are one word; numbers count by their rank among siblings.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

# Tensors of a module. Any other name is a value of the user's own: its words belong to the module, its role is weight.
_ROLES = {
    "weight": "weight kernel w scale gamma embedding embeddings embed",
    "bias": "bias b offset beta shift",
}
_STATISTICS = {
    "mean": "running_mean moving_mean mean mean_ema_average",
    "var": "running_var moving_variance moving_var variance var var_ema_average",
}
# Words that mean the same.
_WORDS = {
    "attention": "attn attention mha multi_head_attention multihead_attention multihead_attn "
    "multi_head_dot_product_attention dot_product_attention",
    "mlp": "mlp ffn ff feed_forward feedforward",
    # What stands behind a part is not that part's: transformers' post_attention_layernorm is the feed-forward part's.
    "behind_attention": "post_attention post_attn after_attention after_attn",
    "behind_mlp": "post_mlp post_ffn post_feedforward post_feed_forward after_mlp after_ffn",
    "qkv": "qkv c_attn in_proj query_key_value",
    "query": "query q wq queries",
    "key": "key k wk keys",
    "value": "value v wv values",
    "out": "out output o wo",
    "in": "in input",
    "final": "final f last",
    "position": "position pos positional positions wpe",
    "token": "token tok tokens word words wte",
    "type": "type segment token_type",
    "class": "cls class",
    "shortcut": "shortcut downsample skip",
    "encoder": "encoder enc",
    "decoder": "decoder dec",
    "mean": "mean mu",
    "var": "var logvar log_var std logstd log_std sigma",
    "forward": "forward fwd",
    "backward": "backward bwd reverse",
    "image": "image images img vision visual",
    "text": "text language",
}
_BEHIND = {"behind_attention", "behind_mlp"}
# Words that tell one module from another of its kind as little as "a" and "the" do. They still count where nothing
# else does, and then they must be the same words.
_GENERIC = {
    "layer": "layer layers block blocks stage stages h resblock resblocks",
    "linear": "linear dense fc proj projection c linears einsum",
    "conv": "conv convolution convs",
    "norm": "norm ln bn gn rms layernorm batchnorm layer_norm batch_norm group_norm groupnorm rms_norm rmsnorm "
    "batch_normalization layer_normalization group_normalization normalization norms",
    "embedding": "embedding embeddings embed emb embeds",
    "model": "model module modules net network sequential params to list",
}
# Of each line a name has one; two names with different ones are never the same weight.
_OPPOSITES = tuple(
    frozenset(line.split())
    for line in (
        "query key value out qkv",
        "in out",
        "gate up down",
        "encoder decoder",
        "self cross",
        "attention mlp",
        "position token type class",
        "forward backward",
        "source target",
        "src tgt",
        "mean var",
        "first second third final",
        "pre post",
        "before after",
        "left right",
        "row col",
        "real imag",
        "low high",
        "actor critic",
        "policy value",
        "generator discriminator",
        "student teacher",
        "online target",
        "text image audio",
    )
)


def _inverted(table: dict[str, str]) -> dict[str, str]:
    return {word: one for one, words in table.items() for word in words.split()}


_ROLE_OF, _STATISTIC_OF = _inverted(_ROLES), _inverted(_STATISTICS)
_WORD_OF = _inverted(_WORDS) | _inverted(_GENERIC)
_LONGEST = max(word.count("_") for word in _WORD_OF) + 1


@dataclass(frozen=True)
class Slot:
    """A number in a name: the word that it counts, and whether the module itself is numbered (``fc1``) rather than one
    around it (``layers.1.query``)."""

    label: str
    final: bool


@dataclass(frozen=True)
class ModuleName:
    """A module's name, read.

    stem     the name with ``#`` for every number: modules of one stem are members of one list, and say the same
    numbers  what stands at each ``#``
    slots    what each number counts
    words    what it says, in words that mean the same on both sides; ``layer#`` for a numbered layer around it
    last     those of the innermost part that says something
    meant    what it says, with the words that tell little
    raw      every word as it is written
    """

    stem: str
    numbers: tuple[int, ...]
    slots: tuple[Slot, ...]
    words: frozenset[str]
    last: frozenset[str]
    meant: frozenset[str]
    raw: frozenset[str]


def tokens(part: str) -> list[str]:
    """The words and numbers of one part of a name.

    >>> tokens("LayerNorm_0"), tokens("qProj"), tokens("conv2_d_1")
    (['layer', 'norm', '0'], ['q', 'proj'], ['conv', '1'])
    """
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", part).lower()
    # The 2 of Conv2D counts nothing.
    snake = re.sub(r"(?<=[a-z])_?[123]_?d(?![a-z])", "", snake)
    return re.findall(r"[a-z]+|\d+", snake)


def _meanings(part: list[str]) -> list[str]:
    """Words of one meaning are one word; those of several tokens (``layer_norm``) are read before those of one."""
    found, i = [], 0
    while i < len(part):
        for length in range(min(_LONGEST, len(part) - i), 0, -1):
            words = "_".join(part[i : i + length])
            if words in _WORD_OF or length == 1:
                found.append(_WORD_OF.get(words, words))
                i += length
                break
    return found


def read(name: str, trained: bool, firsts: Collection[str] = ()) -> tuple[str, tuple[str, ...]]:
    """The role of a tensor and the parts of its module's name. ``firsts``: as ``unnumbered_firsts`` finds them.

    >>> read("encoder.0.self_attn.in_proj_weight", True)
    ('weight', ('encoder', '0', 'self_attn', 'in_proj'))
    >>> read("block.bn.running_var", False)
    ('var', ('block', 'bn'))
    """
    raw = name.split(".")
    parts = [part + ("_-1" if ".".join(raw[: i + 1]) in firsts else "") for i, part in enumerate(raw)]
    *around, leaf = [part for part in parts if part != "~"]
    if not trained:
        for taken in (1, 2):
            said = "_".join(token for part in [*around, leaf][-taken:] for token in tokens(part))
            if said in _STATISTIC_OF:
                return _STATISTIC_OF[said], tuple([*around, leaf][:-taken])
    words = tokens(leaf)
    ends = [i for i in (len(words) - 1, 0) if words and words[i] in _ROLE_OF]
    if not ends:
        return "weight", (*around, leaf)
    role = _ROLE_OF[words.pop(ends[0])]
    return role, (*around, *(["_".join(words)] if words else []))


def module_name(parts: tuple[str, ...]) -> ModuleName:
    """Read the parts of a module's name.

    >>> name = module_name(("encoder", "layers", "3", "self_attn", "q_proj"))
    >>> name.stem, name.numbers, sorted(name.last)
    ('encoder.layers.#.self_attn.q_proj', (3,), ['query'])
    """
    stem, numbers, slots, label = [], [], [], ""
    raw: set[str] = set()
    generic: set[str] = set()
    said: list[set[str]] = []
    for at, part in enumerate(parts):
        split = tokens(part.removesuffix("_-1")) + (["-1"] if part.endswith("_-1") else [])
        words: list[list[str]] = [[]]
        for token in split:
            if token.lstrip("-").isdecimal():
                meant = _meanings(words[-1])
                label = meant[-1] if meant else label
                slots.append(Slot(label, at == len(parts) - 1))
                numbers.append(int(token))
                words.append([])
            else:
                words[-1].append(token)
        stem.append("_".join("#" if token.lstrip("-").isdecimal() else token for token in split))
        for run in words:
            behind = any(word in _BEHIND for word in _meanings(run))
            raw |= set(_meanings(run) if behind else run)
        meant = [word for run in words for word in _meanings(run)]
        label = meant[-1] if meant else label
        generic |= set(meant)
        said.append({word for word in meant if word not in _GENERIC})
    everything = set().union(*said) | {f"{slot.label}#" for slot in slots if not slot.final}
    last = next((frozenset(words) for words in reversed(said) if words), frozenset())
    return ModuleName(
        ".".join(stem),
        tuple(numbers),
        tuple(slots),
        frozenset(everything),
        last,
        frozenset(generic),
        frozenset(raw),
    )


def in_order(name: str) -> list[tuple[bool, int, str]]:
    """A key by which layer 10 comes after layer 9.

    >>> sorted(["h.10.w", "h.9.w"], key=in_order)
    ['h.9.w', 'h.10.w']
    """
    parts = re.split(r"(\d+)", name)
    return [(True, int(p), "") if p.isdecimal() else (False, 0, p) for p in parts]


def contradict(a: ModuleName, b: ModuleName) -> bool:
    """Whether the names cannot be one thing's.

    >>> contradict(module_name(("attn", "q_proj")), module_name(("attention", "key")))
    True
    """
    for line in _OPPOSITES:
        one, other = (name.last & line or name.words & line for name in (a, b))
        if one and other and not one & other:
            return True
    return False


def unnumbered_firsts(names: Collection[str], owners: Collection[str]) -> frozenset[str]:
    """Modules that are the first of their name and therefore carry no number: Haiku and Keras count ``linear``,
    ``linear_1``, ``linear_2``.

    Only theirs: a user's ``fc`` beside ``fc1`` and ``fc2`` is as often the last one. A Keras layer that its user named
    is told from one that Keras named by its class.
    """
    owner_of = dict(zip(names, owners, strict=True))
    framework = {owner.split(".")[0] for owner in owners}
    if not framework & {"haiku", "keras"}:
        return frozenset()
    prefixes = {".".join(parts[:i]) for n in names for parts in [n.split(".")] for i in range(1, len(parts))}
    counted = {m[1] for p in prefixes if (m := re.fullmatch(r"(.*)_\d+", p))}
    named = set()
    if "keras" in framework:
        for name, owner in owner_of.items():
            module = name.rpartition(".")[0]
            said = "_".join(tokens(module.rpartition(".")[2]))
            if owner and said != "_".join(tokens(owner.rpartition(".")[2])):
                named.add(module)
    return frozenset((prefixes & counted) - named)
