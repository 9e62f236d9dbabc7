"""Everything of torch_xla that is not public, in one place. Tested with torch_xla 2.9.0.

``self_test`` runs each of them on a product and checks what comes back; the conformance suite calls it, so a version
that changes one of them fails there by name and not in a report.
"""

from __future__ import annotations

from typing import Any

from detente.programs.count import count_program

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


def real_platform(device: Any) -> str:
    """What a lazy device really is: ``cpu``, ``tpu``. The public ``device_type`` repeats PJRT_DEVICE, true or not."""
    import torch_xla

    (name,) = torch_xla._XLAC._xla_real_devices([str(device)])
    return str(name).partition(":")[0].lower()


def self_test() -> list[str]:
    """What does not do as this file says, each with the version; empty when all is well."""
    import torch
    import torch_xla

    device = torch_xla.device()
    a = torch.ones(3, 5).to(device)
    b = torch.ones(5, 7).to(device)
    torch_xla.sync(wait=True)
    product = a @ b
    wrong = []
    for name, form, ask in (
        ("_get_xla_tensors_hlo_proto", "hlo", lambda: hlo_proto([product])),
        ("_get_stablehlo", "stablehlo", lambda: stablehlo([product]).encode()),
    ):
        try:
            counts = count_program(ask(), form)
            if (counts.products, counts.flops) != (1, 2 * 3 * 5 * 7):
                wrong.append(f"{name} gave {counts.products} products of {counts.flops} FLOPs for one of 210")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    for name, call in (("_xla_real_devices", real_platform), ("_xla_memory_info", memory_info)):
        try:
            call(device)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    return [f"torch_xla {torch_xla.__version__} (tested: {', '.join(TESTED)}): {text}" for text in wrong]
