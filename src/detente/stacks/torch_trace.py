"""What PyTorch dispatches in one step, operator by operator, each with the part of the model that it belongs to and the
seconds that it took.

On a CPU an operator has run when its call returns, so that the time around it is its own, without what Python and the
dispatcher take between two of them; that is what is left of the step's time. On other devices nothing is timed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from detente.programs.operators import SCHEMA
from detente.stacks.protocol import Capture
from detente.stacks.torch_scopes import Scopes

# Views, and what only asks: nothing is computed by them. torch marks views in an operator's own schema.
_NOT_RUN = frozenset({"detach", "alias", "_local_scalar_dense"})


# An operator's seconds are its median over so many steps: a single one is at the mercy of whoever shares the machine.
STEPS = 5


def operators_of(step: Callable[[], Any], module: Any, timed: bool, name: str = "step") -> Capture:
    """The operators of ``step()`` as a capture of form ``operators``. Takes ``STEPS`` steps where it is ``timed``,
    whose operators must be the same ones: a step that differs from the last has no times. Its facts are of as many
    steps that nobody watched: ``plain_s`` seconds and ``cpu_s`` of the processors in a step, and the ``threads`` that
    may compute."""
    facts = _plain(step) if timed else {}
    rows, *others = [_traced(step, module) for _ in range(STEPS if timed else 1)]
    same = all([r["op"] for r in other] == [r["op"] for r in rows] for other in others)
    for at, row in enumerate(rows):
        found = statistics.median(each[at]["seconds"] for each in (rows, *others)) if timed and same else None
        row["seconds"] = found
    document = {"schema": SCHEMA, "name": name, "operations": rows}
    return Capture("operators", name, json.dumps(document).encode(), facts)


def _plain(step: Callable[[], Any]) -> dict[str, float]:
    import torch

    walls, cpus = [], []
    for _ in range(STEPS + 1):
        begun, used = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - begun)
        cpus.append(time.process_time() - used)
    # The first one behind a pause finds its caches cold.
    return {
        "plain_s": statistics.median(walls[1:]),
        "cpu_s": statistics.median(cpus[1:]),
        "threads": float(torch.get_num_threads()),
    }


def _traced(step: Callable[[], Any], module: Any) -> list[dict[str, Any]]:
    from torch.utils._python_dispatch import TorchDispatchMode

    rows: list[dict[str, Any]] = []
    writers: dict[int, int] = {}
    scopes = Scopes(module)

    class Trace(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            begun = time.perf_counter()
            found = func(*args, **kwargs)
            seconds = time.perf_counter() - begun
            if func._overloadpacket.__name__ in _NOT_RUN or func.is_view:
                return found
            path, direction = scopes.now()
            given, made = list(tensors_in((args, kwargs))), list(tensors_in(found))
            written = made or _written(func, args, kwargs)
            rows.append(
                {
                    "op": str(func),
                    "results": [_shape(t) for t in written],
                    "operands": sorted({writers.get(_storage(t), -1) for t in given}),
                    "path": path,
                    "direction": direction,
                    "flops": flops_of(func, args, kwargs, found),
                    "seconds": seconds,
                    **({"channels_last": True} if any(map(channels_last, written)) else {}),
                }
            )
            for tensor in written:
                writers[_storage(tensor)] = len(rows) - 1
            return found

    with scopes.watched(), Trace():
        step()
    return rows


def flops_of(func: Any, args: Any, kwargs: Any, found: Any) -> int:
    """Floating-point operations of a product, an attention or a convolution, by torch's own count; else 0."""
    from torch.utils.flop_counter import flop_registry

    packet = func._overloadpacket
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=found))
    attention = _ATTENTION.get(packet.__name__)
    return attention(*args) if attention is not None else 0


def _attention(query: Any, key: Any, value: Any, *rest: Any) -> int:
    from torch.utils.flop_counter import sdpa_flop_count

    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any) -> int:
    """The scores are computed again, and four products follow."""
    from torch.utils.flop_counter import sdpa_backward_flop_count

    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


# The CPU's own kernels, which torch does not count.
_ATTENTION: dict[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}


def tensors_in(value: Any) -> Iterable[Any]:
    """Every tensor in arguments or results, lists opened."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """What an operator without a result writes into, by its schema."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    names = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return list(tensors_in([given[n] for n in names if n in given]))


def _shape(tensor: Any) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def channels_last(tensor: Any) -> bool:
    """Not where both are true, as of an image of one pixel."""
    import torch

    return (
        tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


def _storage(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata
