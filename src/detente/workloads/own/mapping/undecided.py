"""What is said when the map is not certain: every tensor in question, and the table to fill in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from detente.records.fault import UsageFault
from detente.workloads.own.mapping.tensors import Part

MOST = 12


@dataclass(frozen=True)
class Open:
    """A torch tensor and the leaves that it could be; or one leaf, and the layouts between which its shape does not
    decide."""

    torch: Part
    could: tuple[Part, ...]
    layouts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Undecided:
    """Torch tensors that could be several leaves, those that are none, and the leaves that are no tensor's.
    ``lengths``: lists of one name and different lengths, told."""

    several: tuple[Open, ...]
    without: tuple[Part, ...]
    unfilled: tuple[Part, ...]
    lengths: tuple[str, ...] = ()


def fault(found: Undecided) -> UsageFault:
    """The fault that lists it all, and the table."""
    kinds = (
        ("lists of different lengths", found.lengths, str),
        ("torch tensors of which names and shapes do not say which leaf they are", found.several, _choices),
        ("torch tensors without a leaf", found.without, shown),
        ("leaves without a torch tensor", found.unfilled, shown),
    )
    lines = ["the weights of the two models cannot be mapped with certainty"]
    for what, members, line in kinds:
        lines += [f"{what}:", *_most(members, line)] if members else []
    return UsageFault("\n".join(lines), "\n".join(_hint(found)))


def shown(part: Part) -> str:
    """A tensor's name and shape, and which part of it.

    >>> from detente.workloads.own.mapping.tensors import Tensor
    >>> shown(Part(Tensor("fc.bias", (4,), "Linear"), "fc.bias", (4,)))
    'fc.bias (4,)'
    """
    piece = part.piece
    where = "" if piece is None else f"[{piece.start}:{piece.stop} of axis {piece.axis}]"
    state = "" if part.tensor.trained else ", not trained"
    return f"{part.tensor.name}{where} {part.shape}{state}"


def _choices(question: Open) -> str:
    if question.layouts:
        return f"{shown(question.torch)} is {shown(question.could[0])}: {' or '.join(question.layouts)}?"
    some = " or ".join(shown(part) for part in question.could[:4])
    if len(question.could) == 1:
        return (
            f"{shown(question.torch)}: {some} would fit, but not with the rest of its module or of its list"
        )
    more = len(question.could) - 4
    return f"{shown(question.torch)}: {some}" + (f" or {more} more" if more > 0 else "")


def _most(members: Sequence[Any], line: Callable[[Any], str]) -> list[str]:
    told = [f"  {line(member)}" for member in members[:MOST]]
    return told + ([f"  and {len(members) - MOST} more"] if len(members) > MOST else [])


def _hint(found: Undecided) -> list[str]:
    entries = _entries(found)
    if not entries:
        return [
            "both must have the same parameters: check what one has and the other lacks (use_bias, a head, tied "
            "weights), and which sizes they were made with"
        ]
    told = [f"    {entry}" for entry in entries[:MOST]]
    more = [f"    # and {len(entries) - MOST} more"] if len(entries) > MOST else []
    return [
        'fill in each "?" and put this into your file (a module\'s name stands for all in it, * for a number, '
        '("path", "transposed") names a layout, ["a", "b", "c"] the parts of one tensor):',
        "weights = {",
        *told,
        *more,
        "}",
    ]


def _entries(found: Undecided) -> list[str]:
    """A line for each module in question, or for one in all layers."""
    choices: dict[str, list[str]] = {}
    layouts, fused = [], set()
    # With leaves left over, what has none may be one of them under a name that contradicts.
    without = found.without if found.unfilled else ()
    asked = [question.torch for question in found.several if not question.layouts]
    around = {_module(part).rpartition(".")[0] for part in (*asked, *without)}
    # A tensor goes with its module, unless that one is around others in question or has a tensor without any leaf.
    alone = around | {_module(part) for part in without} & {_module(part) for part in asked}
    for question in found.several:
        if question.layouts:
            leaf, ways = question.could[0].tensor.name, " or ".join(question.layouts)
            layouts.append(f'"{question.torch.tensor.name}": ("{leaf}", "?"),  # {ways}')
    for part, could in (
        *((q.torch, q.could) for q in found.several if not q.layouts),
        *((p, ()) for p in without),
    ):
        apart = _module(part) in alone and part.piece is None
        key = part.tensor.name if apart else _module(part)
        choices.setdefault(key, []).extend(leaf.tensor.name if apart else _module(leaf) for leaf in could)
        fused |= {key} if part.piece else set()
    counts = Counter(_starred(key) for key in choices)
    told: dict[str, list[str]] = {}
    for key, could in choices.items():
        several = counts[_starred(key)] > 1
        value = '["?", "?", "?"]' if key in fused else '"?"'
        line = f'"{_starred(key) if several else key}": {value},'
        told.setdefault(line, []).extend(_starred(path) if several else path for path in could)
    return [line + _comment(list(dict.fromkeys(could))) for line, could in told.items()] + layouts


def _module(part: Part) -> str:
    return part.tensor.name.rpartition(".")[0] or part.tensor.name


def _comment(could: list[str]) -> str:
    return "  # " + " or ".join(could[:4]) + (" or ..." if len(could) > 4 else "") if could else ""


def _starred(name: str) -> str:
    """Every number of a layer around the module as ``*``; the module's own stays, it may be what is asked."""
    return re.sub(r"\d+(?=\.)", "*", name)
