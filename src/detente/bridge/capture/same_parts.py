"""What forward puts in place of a part of the module, taken back behind a capture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from detente.bridge.live.writes import Write
from detente.bridge.refusal import refuse


@contextmanager
def same_parts(model: nn.Module) -> Iterator[list[Write]]:
    """A forward may put another part in place (BigBird's attention for short sequences does). torch.export takes back
    what it writes to attributes, and not this. It is taken back here, and what was put there is among what a step
    writes: half of a change would stay else. Raises Refused for parts with tensors of their own, and for removals."""
    before = [(path, part._modules, dict(part._modules)) for path, part in model.named_modules()]
    own = {id(part) for part in model.modules()}
    put: list[Write] = []
    try:
        yield put
        for path, table, parts in before:
            where = f"model.{path}" if path else "model"
            for name in (n for n, part in parts.items() if part is not None and table.get(n) is None):
                raise refuse("module-changed", f"forward removes {where}.{name}")
            anew = [(name, part) for name, part in table.items() if part is not parts.get(name)]
            for name, part in anew:
                if _has_tensors(part, own):
                    what = f"forward replaces {where}.{name} by a part with tensors of its own"
                    raise refuse("module-changed", what)
                put.append(Write(table, name, part, f"{where}.{name}"))
    finally:
        for _, table, parts in before:
            if table != parts:
                table.clear()
                table.update(parts)


def _has_tensors(part: Any, known: set[int]) -> bool:
    """Whether modules of it that are not ``known`` (by id) hold tensors."""
    fresh = [inner for inner in part.modules() if id(inner) not in known]
    return any(t is not None for p in fresh for table in (p._parameters, p._buffers) for t in table.values())
