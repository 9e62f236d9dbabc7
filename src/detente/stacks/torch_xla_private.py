"""Everything of torch_xla that is not public, in one place. Tested with torch_xla 2.9.0.

``self_test`` runs each of them on a product and checks what comes back; the conformance suite calls it, so a version
that changes one of them fails there by name and not in a report.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
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


def names_of(tensors: dict[str, Any]) -> dict[int, str]:
    """Numbers of tensors on the device -> their names."""
    import torch_xla

    return {int(torch_xla._XLAC._xla_get_tensor_id(tensor)): name for name, tensor in tensors.items()}


def arguments_of(results: list[Any], names: dict[int, str]) -> list[dict[str, Any]]:
    """The arguments of the pending program of ``results``, in the order of ``hlo_proto``'s parameters: dtype, shape,
    and the ``name`` of a tensor or the ``value`` of a number."""
    import torch_xla

    idents, values = torch_xla._XLAC._get_tensors_xla_device_data_node(results)
    found = []
    for ident, value in zip(idents, values, strict=True):
        row: dict[str, Any] = {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": [int(n) for n in value.shape],
        }
        if ident in names:
            row["name"] = names[ident]
        elif value.numel() == 1:
            row["value"] = float(value.cpu())
        else:
            raise ValueError(
                f"an argument of shape {row['shape']} is no tensor of the model, its optimizer or its batch"
            )
        found.append(row)
    return found


def computation_of(data: bytes) -> Any:
    """A program of ``hlo_proto``'s as an operation that tensors can be given to."""
    import torch_xla.core.xla_builder

    # Without it what is donated by name is not taken over.
    torch_xla._XLAC._xla_set_enable_alias_with_buffer_donor_config(True)
    return torch_xla.core.xla_builder.computation_from_module_proto("step", data)


def dispatched(computation: Any, given: list[Any], donated: list[Any]) -> list[Any]:
    """The results of a computation, pending; the memory of ``donated``, which are among ``given``, is theirs."""
    import torch_xla

    for tensor in donated:
        torch_xla._XLAC._set_buffer_donation(tensor, True)
    return list(torch_xla._XLAC._xla_user_computation("detente::step", given, computation))


def as_it_is(tensor: Any) -> Any:
    """Another tensor of the value that this one has now, and of its memory: what is traced of this one from here on
    does not reach it."""
    import torch
    import torch_xla

    found = torch.empty_like(tensor, requires_grad=False)
    torch_xla._XLAC._replace_xla_tensor(found, tensor)
    return found


def replace_tensor(tensor: Any, result: Any) -> None:
    """``tensor`` stays the object that it is, with another value."""
    import torch_xla

    torch_xla._XLAC._replace_xla_tensor(tensor, result)


class Dump:
    """The optimised programs that XLA compiles in this process. To be made before torch_xla is imported, which reads
    its flags once. torch_xla gives an executable away to nobody; the compiler's own dump is the only way to it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="detente-xla-")
        flags = f"--xla_dump_to={self._folder.name} --xla_dump_hlo_as_proto"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()

    def latest(self) -> bytes | None:
        """The steady step, a serialised HloProto: of the large programs the one that was compiled last. The first step
        has another one (its optimizer's state is constants); what waits and reloads compile is small. None where
        there is none."""
        found = sorted(Path(self._folder.name).glob("*after_optimizations.hlo.pb"))
        sizes = {path: path.stat().st_size for path in found}
        large = [path for path in found if 2 * sizes[path] > max(sizes.values())]
        return large[-1].read_bytes() if large else None


def profiled(step: Callable[[], Any]) -> tuple[bytes, dict[str, float]] | None:
    """(a profile of some steps, its facts as in jax_profile.py). ``step`` must wait for its end. None where the runtime
    writes nothing."""
    from torch_xla.debug import profiler

    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    server = profiler.start_server(port)
    begun = time.perf_counter()
    step()
    plain = time.perf_counter() - begun
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="detente-profile-") as folder:

        def trace() -> None:
            try:
                profiler.trace(f"localhost:{port}", folder, duration_ms=int(1000 * max(1.0, 4 * plain)))
            finally:
                over.set()

        beside = threading.Thread(target=trace, daemon=True)
        beside.start()
        steps, begun = 0, time.perf_counter()
        while not over.is_set():
            step()
            steps += 1
        seconds = (time.perf_counter() - begun) / max(steps, 1)
        beside.join()
        del server
        found = sorted(Path(folder).rglob("*.xplane.pb"))
        facts = {"steps": float(steps), "profiled_s": seconds, "plain_s": plain}
        return (found[-1].read_bytes(), facts) if found else None


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
    try:
        # Parameters are numbered as the graph meets them: the same shape twice, so that either order is the product.
        square = torch.ones(4, 4).to(device)
        torch_xla.sync(wait=True)
        again = dispatched(computation_of(hlo_proto([square @ square])), [square], [square])
        replace_tensor(square, again[0])
        torch_xla.sync()
        if square.cpu().tolist() != [[4.0] * 4] * 4:
            wrong.append(f"_xla_user_computation gave {square.cpu().tolist()} for a product of fours")
    except Exception as error:
        wrong.append(f"_xla_user_computation: {type(error).__name__}: {error}")
    for name, call in (("_xla_real_devices", real_platform), ("_xla_memory_info", memory_info)):
        try:
            call(device)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    return [f"torch_xla {torch_xla.__version__} (tested: {', '.join(TESTED)}): {text}" for text in wrong]
