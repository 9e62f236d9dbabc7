"""One step as torch's profiler and its dispatcher saw it (names as of torch 2.13, written for 2.9 on).

The profiler leaves the step as it is: compiled code runs compiled. What it cannot see (the dtypes of products and
the draws inside a fused kernel) is read from the same step run once more, eagerly, under a dispatch mode.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

# Records of a compiled region: dynamo's around its bytecode, AOTAutograd's two functions, Inductor's call.
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")
# torch.optim wraps ``step`` into such a record; an update that a compiler captured has none.
_OPTIMIZER = "Optimizer.step#"
_BACKWARD = "autograd::engine::evaluate_function"
_READ = "aten::_local_scalar_dense"
_COPY_BACK = ("DtoH",)
# Autograd adds a gradient to the one that is there, with a factor of 1 (``zero_grad(set_to_none=False)``, gradients of
# several batches): gathering, as where it copies one, and no update of the user's.
_GATHERS = "torch::autograd::AccumulateGrad"
# Operators that change a tensor by arithmetic, as an update does; ``zero_``, ``copy_`` and their kin only place.
_UPDATES = ("aten::add_", "aten::sub_", "aten::mul_", "aten::addcmul_", "aten::addcdiv_", "aten::lerp_")
_MANY = ("aten::_foreach_", "aten::_fused_")
# What runs beside a compiled step and computes nothing: views, the seed gradient of backward, allocation (autograd
# copies a gradient that has another layout than its parameter, as a convolution's may), the wrapper of the handle that
# is returned, sizes and dtypes.
PLUMBING = frozenset(
    f"aten::{name}"
    for names in (
        "detach detach_ view reshape _unsafe_view as_strided t transpose expand select slice alias unsqueeze squeeze",
        "empty empty_like empty_strided new_empty new_empty_strided ones_like zeros zeros_like",
        "fill_ zero_ _foreach_zero_ resize_ lift_fresh",
        "item is_nonzero _local_scalar_dense to _to_copy copy_ _foreach_copy_ clone result_type",
    )
    for name in names.split(" ")
)
# Namespaces of operators that torch itself has written down one by one.
_PLAIN = ("aten", "prim", "prims", "profiler")
# Operators that multiply, or may, and have no entry in torch's table of FLOPs.
_HIDES = re.compile(
    r"^(add)?mv$|^v?dot$|^addr$|_mm$|dot_product|rnn|lstm|gru|cdist|trilinear|^linalg_|fft|mkldnn|quant"
)


def watch(run: Callable[[], Any]) -> dict[str, Any]:
    """What one call of ``run`` did.

    ``regions``   compiled regions that ran, a nested one not counted again
    ``eager_ops`` operators that computed outside of them, by name (only where there are regions)
    ``updated``   elements that operators outside of them changed by arithmetic: an optimizer that runs eagerly
    ``reads``     values that were copied to the host once backward had begun, the optimizer's own step count left
                  out; in a region without backward, behind the last operator that computes: what a model asks of
                  values on its way (transformers looks for packed sequences) is the model's own
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=kinds, record_shapes=True) as seen:
        run()
    events = list(seen.events() or ())
    inside = {id(e) for e in events if _below(e, _COMPILED)}
    regions = [e for e in events if _is_region(e)]
    backward = [e.time_range.start for e in events if e.name.startswith(_BACKWARD)]
    # An operator that calls others is one operator: the outermost.
    outside = [
        e
        for e in events
        if e.name.startswith("aten::")
        and id(e) not in inside
        and not _below(e, ("aten::",))
        and not _gathers(e)
    ]
    computing = [e.time_range.start for e in (*outside, *regions) if e.name not in PLUMBING]
    begun = min(backward, default=max(computing, default=-math.inf))
    reads = [
        e
        for e in events
        if (e.name == _READ or any(mark in e.name for mark in _COPY_BACK))
        and e.time_range.start >= begun
        and not _below(e, (_OPTIMIZER,))
    ]
    found: dict[str, Any] = {
        "regions": len(regions),
        "updated": sum(_elements(e) for e in outside if e.name in _UPDATES or _is_many(e.name)),
        "reads": len(reads),
        "backward": len(backward),
    }
    if regions:
        names = Counter(e.name for e in outside if e.name not in PLUMBING)
        found["eager_ops"] = dict(sorted(names.items()))
    return found


def _below(event: Any, names: tuple[str, ...]) -> bool:
    """Whether a record whose name begins so is open around this one."""
    while (event := event.cpu_parent) is not None:
        if event.name.startswith(names):
            return True
    return False


def _is_many(name: str) -> bool:
    return name.startswith(_MANY) and name not in PLUMBING


def _gathers(event: Any) -> bool:
    """Whether autograd itself adds here. What a hook of the user's does behind it stands below the same record: a sum
    with a factor of its own (a learning rate), or a second one, is an update."""
    parent = event.cpu_parent
    if event.name != "aten::add_" or parent is None or parent.name != _GATHERS:
        return False
    sums = [child for child in parent.cpu_children if child.name == "aten::add_"]
    # Numbers among the inputs: not every torch keeps them.
    factor = [x for x in (getattr(event, "concrete_inputs", None) or ())[2:3] if x is not None]
    return min(sums, key=lambda child: child.time_range.start) is event and factor in ([], [1], [1.0])


def _elements(event: Any) -> int:
    """Elements of the first operand; of a list of tensors, of all of them."""
    shapes = event.input_shapes
    if not shapes:
        return 0
    first = shapes[0]
    if first and isinstance(first[0], Iterable):
        return sum(math.prod(one) for one in first)
    return math.prod(first) if first else 1


def breaks() -> int:
    """Graph breaks since the start, by dynamo's own count. 0 where dynamo never ran."""
    import sys

    utils = sys.modules.get("torch._dynamo.utils")
    return int(sum(utils.counters["graph_break"].values())) if utils else 0


def frozen() -> bool:
    """Whether Inductor makes constants of parameters (TORCHINDUCTOR_FREEZING=1)."""
    import sys

    config = sys.modules.get("torch._inductor.config")
    return bool(config and config.freezing)


def dispatched(run: Callable[[], Any]) -> dict[str, Any]:
    """The same step eagerly, operator by operator.

    ``product_dtypes``  FLOPs by operand dtypes (``float32xfloat32``) of every product, forward and backward, as torch's
                        own table counts them (torch.utils.flop_counter)
    ``random_ops``      operators that draw random numbers, as torch itself marks them; 1 where none is marked and a
                        generator of torch's moved all the same (an operator of somebody's own)
    ``values_read``     the numbers that were read to the host meanwhile
    ``operators``       how many there were
    ``flops``           of all products, those of attention among them, which torch's table does not know on a CPU
    ``opaque``          operators that may multiply and whose FLOPs nobody here knows, by name
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    products: dict[str, float] = {}
    draws, values, count, attention, opaque = 0, [], 0, 0.0, set()

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal draws, count, attention
            out = func(*args, **(kwargs or {}))
            name = func._overloadpacket.__name__
            count += 1
            draws += _draws(func, args, kwargs or {})
            if name == "_local_scalar_dense":
                values.append(float(out))
            flops = flop_registry.get(func._overloadpacket)
            if flops is not None:
                operands = [str(a.dtype).removeprefix("torch.") for a in args if isinstance(a, torch.Tensor)]
                # addmm and its kin begin with what is added; the operands of the product are the two last matrices.
                key = "x".join(operands[-2:])
                products[key] = products.get(key, 0.0) + float(flops(*args, **(kwargs or {}), out_val=out))
            elif name in _ATTENTION:
                attention += _ATTENTION[name](*args)
            elif func.namespace not in _PLAIN or _HIDES.search(name):
                opaque.add(f"{func.namespace}::{name}")
            return out

    before = _generators()
    with torch.compiler.set_stance("force_eager"), Dispatched():
        run()
    moved = any(not torch.equal(a, b) for a, b in zip(before, _generators(), strict=False))
    return {
        "product_dtypes": products,
        "random_ops": draws or int(moved),
        "values_read": values,
        "operators": count,
        "flops": sum(products.values()) + attention,
        "opaque": sorted(opaque),
    }


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator draws. Dropout, attention and recurrent nets are marked for their rate, and draw nothing
    where it is 0, or nothing is trained."""
    import torch

    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    known = func._schema.arguments
    given = {a.name: a.default_value if a.has_default_value() else None for a in known}
    given |= dict(zip((a.name for a in known), args, strict=False)) | kwargs
    rated = ("dropout_p", "dropout", *(("p",) if "dropout" in func._schema.name else ()))
    off = any(given.get(name) is False for name in ("train", "training"))
    return not off and all(given[name] != 0 for name in rated if name in given)


def _generators() -> list[Any]:
    """The states of torch's own generators."""
    import torch

    found = [torch.random.get_rng_state()]
    return found + (torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])


def operators(run: Callable[[], Any]) -> dict[str, int]:
    """``operators``: how many torch ran in one call of ``run``, none of them compiled."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Counted() as counted:
        run()
    return {"operators": counted.seen}


def regions(run: Callable[[], Any]) -> dict[str, int]:
    """``regions``: how many compiled regions ran in one call of ``run``, as ``watch`` counts them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return {"regions": sum(_is_region(e) for e in seen.events() or ())}


def _is_region(event: Any) -> bool:
    return event.name.startswith("Torch-Compiled Region") and not _below(event, _COMPILED)


def _forward_attention(query: Any, key: Any, value: Any, *_: Any) -> float:
    (*batch, rows, width), keys, wide = query.shape, key.shape[-2], value.shape[-1]
    return 2.0 * math.prod(batch) * rows * keys * (width + wide)


def _backward_attention(_: Any, query: Any, key: Any, value: Any, *rest: Any) -> float:
    # The scores once more, and two products for each of the forward's.
    return 2.5 * _forward_attention(query, key, value)


_ATTENTION: dict[str, Callable[..., float]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _forward_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _backward_attention,
}
