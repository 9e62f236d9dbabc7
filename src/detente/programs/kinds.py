"""What kind of work a kernel does, whatever part of the model it belongs to.

A kernel of XLA's is what it holds: a fusion with a product in it is a product, one that draws random bits and applies
them is random numbers, and so on down the table; the first kind that it meets is its own. An operator of PyTorch's is
known by its name.

How it can fail: a fusion is one kind, and a cheap one that was fused into it is counted with it. A custom call of a
library that is not in the table is ``other``, and is told as that.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from detente.programs.count import live
from detente.programs.module import Instruction, Module, Work
from detente.programs.parts import FREE, MOVES, running

Kind = Literal[
    "products", "convolutions", "random numbers", "lookups", "reductions", "elementwise", "copies", "other"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

_CONVOLUTIONS = frozenset({"convolution"})
_PRODUCTS = frozenset({"dot", "ragged-dot"})
_DRAWN = frozenset({"rng", "rng-bit-generator", "rng-get-and-update-state"})
# Threefry turns 32 bit words: no other part of a training step shifts and mixes them.
_TURNED = frozenset({"xor", "shift-left", "shift-right-logical"})
_LOOKED_UP = frozenset({"gather", "scatter", "sort"})
_REDUCED = frozenset(
    {
        "reduce", "reduce-window", "select-and-scatter", "batch-norm-training", "batch-norm-grad",
        "batch-norm-inference", "cholesky", "triangular-solve", "fft",
    }
)  # fmt: skip
_MOVED = MOVES | {
    "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "reverse", "iota",
}  # fmt: skip
# A word in the target of a custom call, and what the library does there.
_LIBRARY: tuple[tuple[str, Kind], ...] = (
    ("conv", "convolutions"),
    ("depthwise", "convolutions"),
    ("matmul", "products"),
    ("gemm", "products"),
    ("dot", "products"),
    ("attention", "products"),
    ("fmha", "products"),
    ("softmax", "reductions"),
    ("norm", "reductions"),
    ("topk", "lookups"),
    ("threefry", "random numbers"),
    ("detente_update", "elementwise"),
)


def kinds_of(module: Module) -> dict[str, Kind]:
    """Name of a kernel of an optimised program -> its kind."""
    return {
        one.name: _kind(module, one)
        for home, _ in running(module)
        for at in live(home)
        if (one := home.instructions[at]).opcode not in FREE
    }


def _kind(module: Module, one: Instruction) -> Kind:
    held = _held(module, one)
    opcodes = {inside.opcode for inside in held}
    for inside in held:
        if inside.opcode == "custom-call" and (known := _of_library(inside.target)) is not None:
            return known
    words = {i.opcode for i in held if i.opcode in _TURNED and i.shape.dtype in ("u32", "u64")}
    table: tuple[tuple[bool, Kind], ...] = (
        (bool(opcodes & _CONVOLUTIONS), "convolutions"),
        (bool(opcodes & _PRODUCTS), "products"),
        (bool(opcodes & _DRAWN) or words == _TURNED, "random numbers"),
        (bool(opcodes & _LOOKED_UP), "lookups"),
        (bool(opcodes & _REDUCED), "reductions"),
        ("custom-call" in opcodes, "other"),
        (opcodes <= _MOVED, "copies"),
    )
    for met, kind in table:
        if met:
            return kind
    return "elementwise"


def _of_library(target: str) -> Kind | None:
    low = target.lower()
    return next((kind for word, kind in _LIBRARY if word in low), None)


def _held(module: Module, one: Instruction) -> list[Instruction]:
    """The operation, or what a fusion or a call holds, a function that is called twice once; the scalar function of a
    reduction is no work of its own."""
    found: list[Instruction] = []
    waiting, seen = [one], set[str]()
    while waiting:
        inside = waiting.pop()
        if inside.opcode not in ("fusion", "call"):
            found.append(inside)
            continue
        for name in (n for n in inside.called if n not in seen):
            seen.add(name)
            home = module.computations[name]
            waiting += [home.instructions[k] for k in live(home) if home.instructions[k].opcode not in FREE]
    return found


# Behind ``aten.``, without underscores in front: words that an operator's name begins with, as whole words.
_WORDS: tuple[tuple[Kind, str], ...] = (
    ("convolutions", "convolution mkldnn_convolution cudnn_convolution slow_conv thnn_conv conv"),
    (
        "products",
        "mm addmm bmm baddbmm addbmm mv addmv dot vdot matmul linear mkldnn_linear grouped_mm scaled_dot_product "
        "efficient_attention flash_attention",
    ),
    (
        "random numbers",
        "native_dropout fused_dropout bernoulli rand randn randint randperm normal uniform exponential multinomial "
        "geometric",
    ),
    (
        "lookups",
        "embedding index gather scatter take sort topk masked_select masked_scatter nonzero argmax argmin",
    ),
    (
        "reductions",
        "sum nansum mean prod amax amin aminmax max min var std norm linalg_vector_norm foreach_norm softmax "
        "log_softmax safe_softmax logsumexp native_layer_norm native_group_norm native_batch_norm batch_norm "
        "layer_norm fused_rms_norm nll_loss cross_entropy cumsum cumprod any all avg_pool max_pool mkldnn_max_pool "
        "adaptive_avg_pool adaptive_max_pool",
    ),
    (
        "copies",
        "copy to_copy clone contiguous cat stack fill zero zeros new ones empty full slice_backward select_backward "
        "slice_scatter select_scatter constant_pad foreach_copy foreach_zero lift_fresh arange repeat roll flip",
    ),
)
_OPERATORS: tuple[tuple[Kind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(rf"(?:{'|'.join(words.split())})(?:_|\d|$)")) for kind, words in _WORDS
)


def kind_of_operator(one: Instruction) -> Kind:
    """The kind of an operator of PyTorch's, as ``read_operators`` has it.

    >>> from detente.programs.module import Shape
    >>> kind_of_operator(Instruction("aten.addmm.default", (Shape("f32", (2, 2)),)))
    'products'
    >>> kind_of_operator(Instruction("aten._softmax_backward_data.default", (Shape("f32", (2, 2)),)))
    'reductions'
    >>> kind_of_operator(Instruction("aten.mul.Tensor", (Shape("f32", (2, 2)),)))
    'elementwise'
    """
    space, _, rest = one.opcode.partition(".")
    name = rest.partition(".")[0].lstrip("_")
    found: Kind | None = next((kind for kind, words in _OPERATORS if words.match(name)), None)
    if space == "aten" and found is not None:
        return found
    # A library's own operator, whose products torch counts, is one; of another nothing is known.
    unknown: Kind = "elementwise" if space == "aten" else "other"
    return "products" if isinstance(one.detail, Work) else unknown
