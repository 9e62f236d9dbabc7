"""A tensor of the user's model in either framework, and the layouts that lead from one to the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from detente.workloads.weights import LAYOUTS, Reshape, Slice

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """One tensor of either side.

    name     torch's ``state_dict`` name, or the path of a JAX leaf joined by "."
    shape    its shape
    owner    the class of the module that owns it: torch's ``Linear``, or ``nnx.Linear``, ``linen.Dense``,
             ``eqx.Linear``, ``haiku.Linear``, ``keras.Dense``; "" for the user's own parameter
    trained  a parameter, or a buffer and state
    """

    name: str
    shape: Shape
    owner: str
    trained: bool = True


@dataclass(frozen=True)
class Part:
    """A tensor, or a ``piece`` of it, under the name by which it is compared (without the prefix that a table gave)."""

    tensor: Tensor
    name: str
    shape: Shape
    piece: Slice | None = None


@dataclass(frozen=True)
class Kind:
    """What a module computes, and whether its matrices are (out, in) or (in, out)."""

    name: str
    outward: bool = True


_TORCH = {
    "Linear": Kind("linear"),
    "LazyLinear": Kind("linear"),
    "NonDynamicallyQuantizableLinear": Kind("linear"),
    "MultiheadAttention": Kind("linear"),
    "Conv1D": Kind("linear", outward=False),
    **{f"Conv{n}d": Kind("convolution") for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": Kind("upward convolution") for n in (1, 2, 3)},
    **{name: Kind("embedding") for name in ("Embedding", "EmbeddingBag")},
    **{f"BatchNorm{n}d": Kind("batch norm") for n in (1, 2, 3)},
    "SyncBatchNorm": Kind("batch norm"),
    "LayerNorm": Kind("layer norm"),
    "RMSNorm": Kind("rms norm"),
    "GroupNorm": Kind("group norm"),
    **{name: Kind("recurrent") for name in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")},
}
# By the class alone: only Equinox keeps (out, in).
_JAX = {
    **{
        name: Kind("linear", outward=False)
        for name in ("Linear", "LinearGeneral", "Dense", "DenseGeneral", "EinsumDense")
    },
    **{
        name: Kind("convolution", outward=False)
        for name in ("Conv", *(f"Conv{n}{d}" for n in (1, 2, 3) for d in "dD"))
    },
    "DepthwiseConv1D": Kind("depthwise convolution", outward=False),
    "DepthwiseConv2D": Kind("depthwise convolution", outward=False),
    **{
        name: Kind("upward convolution", outward=False)
        for name in (
            "ConvTranspose",
            *(f"ConvTranspose{n}{d}" for n in (1, 2, 3) for d in "dD"),
            *(f"Conv{n}DTranspose" for n in (1, 2, 3)),
        )
    },
    **{name: Kind("embedding") for name in ("Embed", "Embedding")},
    **{name: Kind("batch norm") for name in ("BatchNorm", "BatchNormalization")},
    **{name: Kind("layer norm") for name in ("LayerNorm", "LayerNormalization")},
    **{name: Kind("rms norm") for name in ("RMSNorm", "RMSNormalization")},
    **{name: Kind("group norm") for name in ("GroupNorm", "GroupNormalization")},
}


@dataclass(frozen=True)
class Laying:
    """A layout and the change of shape behind it."""

    layout: str
    reshape: Reshape | None = None


def torch_kind(owner: str) -> Kind | None:
    """None for a class that is the user's own."""
    return _TORCH.get(owner)


def jax_kind(owner: str) -> Kind | None:
    """None for a class that is the user's own.

    >>> jax_kind("eqx.Linear"), jax_kind("linen.Dense")
    (Kind(name='linear', outward=True), Kind(name='linear', outward=False))
    """
    framework, _, name = owner.rpartition(".")
    kind = _JAX.get(name)
    if kind is not None and framework == "eqx":
        # Keras's DepthwiseConv2D and Equinox's have nothing but the name in common; Equinox's convolutions are torch's.
        return Kind("convolution" if kind.name == "depthwise convolution" else kind.name)
    # haiku.DepthwiseConv2D is (*space, 1, in * multiplier), as a grouped convolution is.
    if kind is not None and kind.name == "depthwise convolution" and framework == "haiku":
        return Kind("convolution", outward=False)
    return kind


def forms(torch: Part, jax: Part) -> tuple[Laying, ...]:
    """The ways in which the torch tensor can be the leaf: none, one, or several between which the shapes do not
    decide.

    >>> def ways(owner, shape):
    ...     torch, jax = Tensor("q.weight", (8, 8), "Linear"), Tensor("q.w", shape, owner)
    ...     return [form.layout for form in forms(Part(torch, "", (8, 8)), Part(jax, "", shape))]
    >>> ways("nnx.Linear", (8, 8)), ways("eqx.Linear", (8, 8)), ways("nnx.LinearGeneral", (8, 2, 4))
    (['transposed'], ['same'], ['transposed'])
    >>> ways("", (8, 8)), ways("", (4, 4))
    (['same', 'transposed'], [])
    """
    if torch.tensor.trained != jax.tensor.trained:
        return ()
    return _forms(torch.shape, torch.tensor.owner, jax.shape, jax.tensor.owner)


# Of the many pairs of a large model few differ in shape and class.
@lru_cache(maxsize=4096)
def _forms(torch: Shape, owner: str, jax: Shape, other_owner: str) -> tuple[Laying, ...]:
    one, other = torch_kind(owner), jax_kind(other_owner)
    names = one and one.name, other and other.name
    if names[0] == "recurrent" or (all(names) and names[0] != names[1] and names not in _ROWS):
        return ()
    if len(torch) < 2:
        return _flat(torch, jax, other)
    if one is None or other is None:
        return _by_shape(torch, jax, one or other)
    found = (row(torch, jax, one.outward == other.outward) for row in _ROWS.get((one.name, other.name), ()))
    return tuple(form for form in found if form is not None)


def behind(torch: Part, jax: Part, layout: str) -> Laying | None:
    """The form with a layout that the user named, or None where the shapes forbid it."""
    try:
        shape = _laid(torch.shape, layout)
    except (ValueError, IndexError):
        return None
    return _reshaped(layout, shape, jax.shape) if math.prod(shape) == math.prod(jax.shape) else None


def _laid(shape: Shape, layout: str) -> Shape:
    return LAYOUTS[layout].there(np.broadcast_to(np.int8(0), shape)).shape


def _reshaped(layout: str, shape: Shape, leaf: Shape) -> Laying:
    return Laying(layout, None if shape == leaf else Reshape(shape, leaf))


def _without_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _flat(torch: Shape, jax: Shape, kind: Kind | None) -> tuple[Laying, ...]:
    """Biases, scales and statistics: the leaf may have axes of one, or those of the heads."""
    heads = kind is not None and kind.name == "linear" and math.prod(torch) == math.prod(jax)
    return (_reshaped("same", torch, jax),) if heads or _without_ones(torch) == _without_ones(jax) else ()


def _linear(torch: Shape, jax: Shape, same: bool) -> Laying | None:
    """Axes of inputs and axes of outputs may be several each (heads), side by side in the same order."""
    layout = "same" if same else "transposed"
    shape = _laid(torch, layout)
    if len(shape) != 2:
        return None
    # Where they part. Equinox has no such axes.
    parted = any((math.prod(jax[:k]), math.prod(jax[k:])) == shape for k in range(1, len(jax)))
    return _reshaped(layout, shape, jax) if parted else None


def _convolution(torch: Shape, jax: Shape, same: bool) -> Laying | None:
    layout = "same" if same else "convolution"
    return Laying(layout) if _laid(torch, layout) == jax else None


def _depthwise(torch: Shape, jax: Shape, same: bool) -> Laying | None:
    """torch's (in * multiplier, 1, *space) with the inputs outermost; Keras's (*space, in, multiplier)."""
    shape = _laid(torch, "convolution")
    fits = shape[-2] == 1 and len(jax) == len(shape) and jax[:-2] == shape[:-2]
    return (
        _reshaped("convolution", shape, jax)
        if fits and math.prod(jax[-2:]) == shape[-1] and not same
        else None
    )


def _pointwise(torch: Shape, jax: Shape, same: bool) -> Laying | None:
    """A convolution over one place is a linear layer. Over several, the order of the inputs is the user's."""
    matrix = len(torch) == 2
    layout = "same" if same else "transposed" if matrix else "convolution"
    shape, ones = _laid(torch, layout), _without_ones
    longer, shorter = (jax, shape) if matrix else (shape, jax)
    space = len(longer) - 2
    over_one = all(
        size == 1 for size in (longer[2:] if same else longer[:space])
    )  # (out, in, *space), or (*space, in, out)
    channels = longer[:2] if same else longer[space:]
    return (
        _reshaped(layout, shape, jax)
        if over_one and channels == shorter and ones(shape) == ones(jax)
        else None
    )


def _as_it_is(torch: Shape, jax: Shape, same: bool) -> Laying | None:
    return _reshaped("same", torch, jax) if _without_ones(torch) == _without_ones(jax) else None


# Two kinds and the form between them. Transposed convolutions and recurrent cells are in no row: frameworks differ in
# what they flip and in which gate comes first, which no shape shows.
_ROWS = {
    ("linear", "linear"): (_linear,),
    ("convolution", "convolution"): (_convolution,),
    ("convolution", "depthwise convolution"): (_depthwise,),
    ("linear", "convolution"): (_pointwise,),
    ("convolution", "linear"): (_pointwise,),
    **{(kind, kind): (_as_it_is,) for kind in ("embedding", "layer norm", "rms norm")},
}
# What one side's class leaves open about the other's.
_OPEN = {
    "linear": ("same", "transposed"),
    "convolution": ("same", "convolution"),
    "embedding": ("same", "transposed"),
    "layer norm": ("same",),
    "rms norm": ("same",),
}
_OPEN_BY_RANK = ("same", "transposed", "swapped", "convolution")


def _by_shape(torch: Shape, jax: Shape, kind: Kind | None) -> tuple[Laying, ...]:
    """Where a class is unknown: every layout whose shape fits. More than one is a question to the user."""
    if _without_ones(torch) == _without_ones(jax) and len(_without_ones(torch)) < 2:
        return (_reshaped("same", torch, jax),)
    layouts = _OPEN_BY_RANK if kind is None else _OPEN.get(kind.name, ())
    # In a matrix, "swapped" and "convolution" are "transposed" over again.
    layouts = layouts if len(torch) > 2 else tuple(x for x in layouts if x in ("same", "transposed"))
    found = [Laying(layout) for layout in layouts if _laid(torch, layout) == jax]
    if not found and _without_ones(torch) == _without_ones(jax):
        # A leading axis of one (a table of positions), say. Two axes of one length may have changed places.
        stays = len(set(_without_ones(torch))) == len(_without_ones(torch))
        found = [_reshaped(layout, torch, jax) for layout in ("same", "swapped")[: 1 + (not stays)]]
        found = [
            form for form in found if form.reshape and math.prod(form.reshape.canonical) == math.prod(jax)
        ]
    return tuple(found)
