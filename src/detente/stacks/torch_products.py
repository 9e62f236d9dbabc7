"""What dtypes a torch step multiplies in, counted while it runs: an eager stack gives no program away to be read.

``TorchDispatchMode`` lives in a module with an underscore (torch.utils._python_dispatch), unchanged from torch 2.0 to
2.13; without it nothing is counted, and the audit says "not checked".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def product_dtypes(run: Callable[[], Any]) -> dict[str, float]:
    """FLOPs by operand dtypes (``float32xfloat32``) of every product that ``run`` dispatches, forward and backward.

    What counts as a product, and its FLOPs, is torch's own table (torch.utils.flop_counter). Compiled functions run
    eagerly meanwhile: the products are those that were asked for, as in the program before optimisation.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    found: dict[str, float] = {}

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            flops = flop_registry.get(func._overloadpacket)
            if flops is not None:
                operands = [str(a.dtype).removeprefix("torch.") for a in args if isinstance(a, torch.Tensor)]
                # addmm and its kin begin with what is added; the operands of the product are the two last matrices.
                key = "x".join(operands[-2:])
                found[key] = found.get(key, 0.0) + float(flops(*args, **(kwargs or {}), out_val=out))
            return out

    with torch.compiler.set_stance("force_eager"), Products():
        run()
    return found
