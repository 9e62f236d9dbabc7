"""torch's operators on lists of tensors (``torch._foreach_mul``) as the same operator on each: what they compute."""

from __future__ import annotations

from typing import Any

import torch

from detente.bridge.optim.number import number_of

# name without ``_foreach_`` and overload -> one call, where torch's operator of that name is another
OTHER: dict[str, Any] = {
    "norm": lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype),
    "zero": torch.zeros_like,
    "copy": lambda x, source: source.to(x.dtype).expand(x.shape).clone(),
    "max": torch.amax,
}
# overload of a bound: by a number it is a clamp
BOUNDS = {"maximum": torch.clamp_min, "minimum": torch.clamp_max, "clamp_min": torch.clamp_min,
          "clamp_max": torch.clamp_max}  # fmt: skip


def each(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The list that ``func`` would give; for one in place (a composite's), the writes."""
    base = name.removeprefix("aten._foreach_").partition(".")[0]
    in_place = base.endswith("_")
    base = base.removesuffix("_")
    count = len(args[0])
    asked = [argument.name for argument in func._schema.arguments]
    rows = {
        key: value for key, value in (*zip(asked, args, strict=False), *kwargs.items()) if value is not None
    }
    out = []
    for i in range(count):
        row = {key: _row(value, i, count) for key, value in rows.items()}
        alpha = row.pop("alpha", None)
        given = list(row.values())
        if base in BOUNDS and not isinstance(given[1], torch.Tensor):
            new = BOUNDS[base](*given)
        elif base in OTHER:
            new = OTHER[base](*given)
        elif base in ("addcmul", "addcdiv"):
            new = getattr(torch, base)(*given[:3], **({"value": given[3]} if len(given) > 3 else {}))
        else:
            function = {"maximum": torch.maximum, "minimum": torch.minimum}.get(base) or getattr(torch, base)
            new = function(*given, **({} if alpha is None else {"alpha": alpha}))
        out.append(given[0].copy_(new) if in_place else new)
    return None if in_place else out


def _row(value: Any, i: int, count: int) -> Any:
    if isinstance(value, list | tuple):
        return value[i] if len(value) == count else value
    if (
        isinstance(value, torch.Tensor)
        and number_of(value) is None
        and value.dim() == 1
        and len(value) == count
    ):
        return value[i]  # addcmul.Tensor: a number for each
    return value
