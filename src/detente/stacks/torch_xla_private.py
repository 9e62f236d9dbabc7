"""Everything of torch_xla that is not public, in one place. Tested with torch_xla 2.9.0.

``self_test`` runs each of them on a product and checks what comes back; the conformance suite calls it, so a version
that changes one of them fails there by name and not in a report.
"""

from __future__ import annotations

from typing import Any

from detente.programs.count import count_program
from detente.stacks.protocol import Unavailable

TESTED = ("2.9.0",)


def hlo_proto(tensors: list[Any]) -> bytes:
    """The pending lazy graph of ``tensors`` as a serialised HloModuleProto, before any optimisation. Executes
    nothing. Donation is not in it: that is decided when the graph is dispatched."""
    import torch_xla

    return bytes(torch_xla._XLAC._get_xla_tensors_hlo_proto(tensors))


def stablehlo(tensors: list[Any]) -> str:
    """The same graph as StableHLO text, which torch_xla canonicalises on the way: compare protos with protos."""
    import torch_xla

    device = torch_xla._XLAC._xla_get_default_device()
    return torch_xla._XLAC._get_stablehlo(tensors, device, [], False).decode()


def memory_info(device: Any) -> dict[str, int]:
    """The runtime's allocator figures; empty where the plugin keeps none (the CPU's does not)."""
    import torch_xla

    try:
        return dict(torch_xla._XLAC._xla_memory_info(str(device)))
    except RuntimeError:
        return {}


def self_test() -> None:
    """Raises Unavailable naming the first private call that does not do what this file says."""
    import torch
    import torch_xla

    device = torch_xla.device()
    a = torch.ones(3, 5).to(device)
    b = torch.ones(5, 7).to(device)
    torch_xla.sync(wait=True)
    product = a @ b
    for name, form, data in (
        ("_get_xla_tensors_hlo_proto", "hlo", hlo_proto([product])),
        ("_get_stablehlo", "stablehlo", stablehlo([product]).encode()),
    ):
        counts = count_program(data, form)
        if (counts.products, counts.flops) != (1, 2 * 3 * 5 * 7):
            raise Unavailable(
                f"torch_xla {torch_xla.__version__}: {name} gave {counts.products} products of {counts.flops} FLOPs "
                f"for one of 210; tested with {', '.join(TESTED)}"
            )
    memory_info(device)
