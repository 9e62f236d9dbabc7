"""torch's side: one forward pass, and what comes out of every operation in which a parameter meets something else.

A parameter is followed by its memory, and through what is made of parameters alone: a cast, a weight that is the
product of two. What an operation gave is followed by memory, too, so that each boundary knows those whose results it
was given.

How it can fail: what is made of parameters alone (a learned query, normalised) is recorded only where it meets an
activation. Of a kernel with several results, the first is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detente.worker.layers.record import Boundary, Values, narrowest, values_of

# Makers of new tensors, which take of a tensor its shape and dtype and not its values.
_FRESH = frozenset(
    {
        "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", "zeros_like", "ones_like", "full_like",
        "empty_like", "rand_like", "randn_like", "randint_like", "sym_size", "sym_stride", "sym_numel",
    }
)  # fmt: skip
# Arguments that a normalisation by the batch's own statistics writes, and does not read for its result.
_STATISTICS = frozenset({"running_mean", "running_var"})
_BY_THE_BATCH = frozenset({"_batch_norm_with_update", "_batch_norm_with_update_functional"})

Names = tuple[str, ...]


def walk(run: Callable[[], Any], named: Mapping[str, torch.Tensor]) -> list[Boundary]:
    """The boundaries of the forward pass ``run()`` in order of execution; ``named`` are parameters and persistent
    buffers, by canonical name, of the module that it runs. They are as before afterwards."""
    before = {n: t.detach().clone() for n, t in named.items() if not t.requires_grad}
    # A fused encoder layer would consume twelve parameters at once.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    mode = _Walk(named)
    try:
        with torch.no_grad(), mode:
            run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        with torch.no_grad():
            for name, old in before.items():
                if not torch.equal(named[name], old):
                    named[name].copy_(old)
    return mode.found


class _Walk(TorchDispatchMode):
    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.found: list[Boundary] = []
        self._memory: dict[int, list[tuple[int, int, str]]] = {}  # of given ones: where each begins and ends
        for name, tensor in named.items():
            self._memory.setdefault(_place(tensor), []).append((*_extent(tensor), name))
        self._made: dict[int, Names] = {}  # memory that was made of these alone
        self._flow: dict[int, frozenset[int]] = {}  # memory -> boundaries whose results flow into it
        self._through: dict[int, str] = {}  # memory -> the narrowest floats on the way to it
        self._sites: dict[tuple[str, Names], int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(_arguments(func, args, kwargs))
        # Asked before: in-place operations change what is asked about.
        names = [self._names(t) for t, _ in given]
        values = (
            _largest([t for (t, _), n in zip(given, names, strict=True) if not n]) if any(names) else None
        )
        known = {_place(t) for t, _ in given}
        result = func(*args, **kwargs)
        outs = [t for t in _tensors(result) if _place(t)]
        if func.overloadpacket.__name__ in _FRESH:
            self._settle(outs, (), frozenset(), "")
        elif not any(write and _place(t) in self._memory for t, write in given):
            self._follow(func.overloadpacket.__name__, given, names, values, known, outs)
        return result

    def _follow(
        self,
        name: str,
        given: list[tuple[torch.Tensor, bool]],
        names: list[Names],
        values: Values | None,
        known: set[int],
        outs: list[torch.Tensor],
    ) -> None:
        consumed = tuple(dict.fromkeys(n for some in names for n in some))
        met = (str(t.dtype).removeprefix("torch.") for t in [*(t for t, _ in given), *outs])
        through = narrowest([*met, *(self._through.get(_place(t), "") for t, _ in given)])
        others = [t for (t, _), some in zip(given, names, strict=True) if not some]
        if consumed and not others:
            # Made of parameters alone. A view of one is known by its memory.
            self._settle([t for t in outs if _place(t) not in self._memory], consumed, frozenset(), through)
            return
        flow = frozenset[int]().union(*(self._flow.get(_place(t), frozenset()) for t in others))
        floats = [t for t in outs if t.is_floating_point() or t.is_complex()]
        if consumed and floats:
            site = self._sites.setdefault((name, consumed), len(self._sites))
            after = tuple(sorted(flow))
            flow = frozenset({len(self.found)})
            out = floats[0]
            what, shape = f"aten.{name}", tuple(out.shape)
            self.found.append(Boundary(consumed, what, shape, _read(out), values, 0, site, through, after))
        for out in outs:
            # A write into a view leaves the rest of its memory as it was.
            old = self._flow.get(_place(out), frozenset()) if _place(out) in known else frozenset()
            self._settle([out], (), old | flow, through)

    def _settle(self, outs: list[torch.Tensor], names: Names, flow: frozenset[int], through: str) -> None:
        """What is known of this memory from here on; what it held before, when another tensor lived there, is not."""
        for out in outs:
            place = _place(out)
            self._made.pop(place, None)
            if names:
                self._made[place] = names
            self._flow[place], self._through[place] = flow, through

    def _names(self, tensor: torch.Tensor) -> Names:
        place = _place(tensor)
        there = self._memory.get(place)
        if there is None:
            return self._made.get(place, ())
        begin, end = _extent(tensor)
        # Several may share one memory; of two names of the same extent (tied weights) the first is the canonical one.
        found = {(b, e): n for b, e, n in reversed(there) if b < end and begin < e}
        return tuple(found[k] for k in sorted(found))


def _place(tensor: torch.Tensor) -> int:
    """Its memory, which views share; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors
        return 0


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last byte of the memory that it spans."""
    begin = tensor.storage_offset()
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return begin * tensor.element_size(), (begin + span) * tensor.element_size()


def _largest(tensors: list[torch.Tensor]) -> Values | None:
    floats = [t for t in tensors if t.is_floating_point() and t.numel()]
    return _read(max(floats, key=torch.Tensor.numel)) if floats else None


def _read(tensor: torch.Tensor) -> Values:
    return values_of(
        tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()
    )


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[torch.Tensor, bool]]:
    """The tensors that the result is made of, and whether each is written."""
    declared = func._schema.arguments
    by_name = {a.name: a for a in declared}
    passed = {a.name: value for a, value in zip(declared, args, strict=False)} | dict(kwargs)
    alone = func.overloadpacket.__name__ in _BY_THE_BATCH or passed.get("training") is True
    for name, value in passed.items():
        if alone and name in _STATISTICS:
            continue
        info = by_name[name].alias_info if name in by_name else None
        for tensor in _tensors(value):
            yield tensor, info is not None and info.is_write


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
