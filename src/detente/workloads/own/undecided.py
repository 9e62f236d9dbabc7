"""What is said when the map is not certain: every tensor in question, and the table to fill in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from detente.records.fault import UsageFault
from detente.workloads.own.tensors import Part

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
    """Torch tensors that could be several leaves, those that are none, and the leaves that are no tensor's."""

    several: tuple[Open, ...]
    without: tuple[Part, ...]
    unfilled: tuple[Part, ...]


def fault(found: Undecided) -> UsageFault:
    """The fault that lists it all, and the table."""
    kinds = (
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

    >>> from detente.workloads.own.tensors import Tensor
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
        return f"{shown(question.torch)}: {some} alone fits, and the other names or numbers speak against it"
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
        '("path", "transposed") for a layout):',
        "weights = {",
        *told,
        *more,
        "}",
    ]


def _entries(found: Undecided) -> list[str]:
    choices: dict[str, list[str]] = {}
    layouts = {}
    for question in found.several:
        name = question.torch.tensor.name
        if question.layouts:
            layouts[name] = f'"{name}": ("{question.could[0].tensor.name}", "?"),  # ' + " or ".join(
                question.layouts
            )
            continue
        # A module's tensors go together, where each of them says so.
        key = name.rpartition(".")[0] or name
        could = [
            part.tensor.name.rpartition(".")[0] if key != name else part.tensor.name
            for part in question.could
        ]
        if question.torch.piece is not None or not all(could):
            key, could = name, [part.tensor.name for part in question.could]
        choices.setdefault(key, []).extend(could)
    for part in found.without if found.unfilled else ():
        choices.setdefault(part.tensor.name, [])
    starred: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for key in choices:
        counts[_starred(key)] = counts.get(_starred(key), 0) + 1
    for key, could in choices.items():
        several = counts[_starred(key)] > 1
        named = [_starred(path) for path in could] if several else could
        starred.setdefault(_starred(key) if several else key, []).extend(named)
    told = []
    for key, could in starred.items():
        some = list(dict.fromkeys(could))
        comment = "  # " + " or ".join(some[:4]) + (" or ..." if len(some) > 4 else "") if some else ""
        told.append(f'"{key}": "?",{comment}')
    return [*told, *layouts.values()]


def _starred(name: str) -> str:
    """Every number of a layer around the module as ``*``; the module's own stays, it may be what is asked."""
    return re.sub(r"\d+(?=\.)", "*", name)
